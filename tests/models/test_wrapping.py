"""A model is tried out once, however often it is wrapped, and only for what is asked of it."""

from __future__ import annotations

import gc
import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from copy import copy, deepcopy
from typing import Any
from weakref import ref

import pytest
import torch
from tiny_models import Architecture

import forerun as fr
from forerun.base.errors import InputError, UnsupportedError
from forerun.drafters import EarlyExit, Model, Quantized
from forerun.models.base import identity
from forerun.models.handover import Shelf

PROMPT = [1, 2, 3]
PROBING = 6  # two texts from scratch, then four rounds of two rows


def tiny(dtype: torch.dtype = torch.float32) -> Any:
    return Architecture("llama", "crop", dtype=dtype).build()


class Count:
    """How often the forward of a model was called."""

    def __init__(self) -> None:
        self.passes = 0

    def __call__(self, *_: Any, **__: Any) -> None:
        self.passes += 1


@contextmanager
def counted(model: Any) -> Iterator[Count]:
    """Counts inside the model, where no copy of its surface is missed and no hook is added."""
    count, embed = Count(), model.get_input_embeddings()
    handle = embed.register_forward_pre_hook(count)
    yield count
    handle.remove()


def passes_of(model: Any, count: Count, **options: Any) -> int:
    before = count.passes
    fr.generate(model, PROMPT, max_new_tokens=5, **{"drafter": None} | options)
    return count.passes - before


def test_the_second_call_tries_nothing_out() -> None:
    model = tiny()
    with counted(model) as count:
        assert passes_of(model, count) == PROBING + 5
        assert passes_of(model, count) == 5
        assert passes_of(model, count, drafter=fr.drafters.NGram(), draft_length=2) <= 5


def test_trees_are_tried_out_once_and_where_they_are_asked_for() -> None:
    model = tiny()
    drafter = fr.drafters.NGram(min_n=1)
    with counted(model) as count:
        passes_of(model, count)
        assert fr.wrap(model).findings.scores_trees is None
        assert passes_of(model, count, drafter=drafter, tree=4, draft_length=2) > 5
        assert fr.wrap(model).findings.scores_trees is True
        assert passes_of(model, count, drafter=drafter, tree=4, draft_length=2) <= 5


@pytest.mark.parametrize("drafter", [EarlyExit(1), Quantized("int8")])
def test_drafters_made_of_the_target_do_not_ask_for_trees(drafter: Any) -> None:
    model = tiny()
    fr.generate(model, PROMPT, drafter=drafter, draft_length=2, max_new_tokens=5)
    assert fr.wrap(model).findings.scores_trees is None


def test_a_drafting_model_is_not_tried_on_trees_for_chains() -> None:
    drafter = Model(tiny())
    for options in ({"draft_length": 3}, {"draft_length": 3, "rule": "ratio"}):
        fr.generate(tiny(), PROMPT, drafter=drafter, max_new_tokens=8, **options)
        assert drafter.model.findings.scores_trees is None
    fr.generate(tiny(), PROMPT, drafter=drafter, draft_length=3, tree=6, max_new_tokens=8)
    assert drafter.model.findings.scores_trees is True


def test_a_rounded_copy_is_tried_out_on_the_exact_weights() -> None:
    model = tiny()
    rounded = fr.wrap(model).rounded("int8")
    with counted(model) as count:
        assert rounded.scores_trees
        assert count.passes > PROBING
    assert identity(rounded) is not identity(fr.wrap(model))
    alone = fr.wrap(tiny()).rounded("int8")
    assert alone.start(1, 8).lengths == [0]  # the exact model is gone


def test_what_is_learned_about_a_model_outlives_its_wrappers() -> None:
    model, drafter = tiny(), Quantized("int8")
    shelf: Shelf[str] = Shelf()
    shelf.put("learned", fr.wrap(model))
    assert shelf.take(fr.wrap(tiny())) is None
    assert shelf.take(fr.wrap(model)) == "learned"
    copied = drafter.make(fr.wrap(model), None)
    assert drafter.make(fr.wrap(model), None) is copied


def test_a_wrapped_model_is_freed_with_its_last_owner() -> None:
    """At once: a collector that comes later would leave gigabytes on the device."""
    model = tiny()
    drafters = [Quantized("int8"), EarlyExit(1)]
    for drafter in drafters:
        fr.generate(model, PROMPT, drafter=drafter, draft_length=2, max_new_tokens=5)
    gone = ref(model)
    gc.collect()
    gc.disable()
    try:
        del model
        assert gone() is None
    finally:
        gc.enable()


def test_copies_are_models_of_their_own() -> None:
    model = tiny()
    fr.generate(model, PROMPT, drafter=None, max_new_tokens=2)
    for other in (deepcopy(model), copy(model), pickle.loads(pickle.dumps(model))):
        assert fr.wrap(other).model is other
        assert identity(fr.wrap(other)) is not identity(fr.wrap(model))
    wrapped = deepcopy(fr.wrap(model))
    assert wrapped.start(1, 8).lengths == [0]


def change_dtype(model: Any) -> None:
    model.bfloat16()


def change_attention(model: Any) -> None:
    model.set_attn_implementation("eager")


def change_config(model: Any) -> None:
    model.config.rope_parameters["rope_theta"] = 5.0


def change_forward(model: Any) -> None:
    inner = model.forward
    model.forward = lambda *args, **options: inner(*args, **options)


def add_adapter(model: Any) -> None:
    model.model.layers[0].self_attn.q_proj.extra = torch.nn.Linear(2, 2)


@pytest.mark.parametrize(
    "change", [change_dtype, change_attention, change_config, change_forward, add_adapter]
)
def test_a_model_that_is_run_in_another_way_is_tried_out_again(change: Any) -> None:
    model = tiny()
    before = fr.wrap(model).findings
    assert fr.wrap(model).findings is before
    change(model)
    after = fr.wrap(model).findings
    assert after is not before
    assert fr.wrap(model).findings is after


def test_a_model_put_back_into_training_is_refused() -> None:
    model = tiny()
    fr.generate(model, PROMPT, drafter=None, max_new_tokens=2)
    with pytest.raises(InputError, match="training mode"):
        fr.generate(model.train(), PROMPT, drafter=None, max_new_tokens=2)


class Letters:
    """Enough of a tokenizer."""

    def encode(self, text: str, **_: Any) -> list[int]:
        return [ord(letter) % 32 for letter in text]

    def decode(self, tokens: list[int], **_: Any) -> str:
        return "".join(chr(64 + token % 32) for token in tokens)


def test_tokenizers_share_what_was_found_out() -> None:
    model, letters = tiny(), [Letters(), Letters()]
    one, other = (fr.wrap(model, tokenizer) for tokenizer in letters)
    assert [one.tokenizer, other.tokenizer] == letters
    assert one.findings is other.findings
    assert fr.generate(one, "ab", max_new_tokens=3).text is not None


@pytest.mark.parametrize(
    ("tokenizer", "shown"),
    [("tok", "the str 'tok'"), (b"tok", "the bytes b'tok'"), (Letters, "the type <class"), (3, "")],
)
def test_what_cannot_encode_and_decode_is_no_tokenizer(tokenizer: Any, shown: str) -> None:
    message = f"can encode and decode. Received {shown}.*Pass the tokenizer itself"
    with pytest.raises(InputError, match=message):
        fr.wrap(tiny(), tokenizer)


def test_a_tokenizer_is_no_model() -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    bare = Tokenizer(WordLevel({"a": 0}, unk_token="a"))
    for tokenizer in (bare, PreTrainedTokenizerFast(tokenizer_object=bare)):
        for others in ((), (tiny(),)):
            with pytest.raises(InputError, match=r"argument is a tokenizer.*wrap\(model, tokeniz"):
                fr.wrap(tokenizer, *others)


def test_a_function_that_also_encodes_and_decodes_is_still_a_model() -> None:
    class Speller(Letters):
        def __call__(self, ids: Any) -> Any:
            return [0.5, 0.5]

    assert fr.wrap(Speller()).vocab_size == 2


def test_a_loaded_model_says_why_it_is_not_pickled() -> None:
    wrapped = fr.wrap(tiny())
    with pytest.raises(UnsupportedError, match=r"cannot be pickled.*HuggingFaceModel.*forerun.lo"):
        pickle.dumps(wrapped)
    assert vars(copy(wrapped)) == vars(wrapped)
    apart = deepcopy(wrapped)
    assert apart.model is apart._forward.model is not wrapped.model


def test_threads_share_one_trial() -> None:
    model = tiny()
    expected = fr.generate(tiny(), PROMPT, drafter=None, max_new_tokens=5).tokens
    with counted(model) as count, ThreadPoolExecutor(4) as threads:
        how: Any = {"max_new_tokens": 5, "drafter": None}
        runs = [threads.submit(fr.generate, model, PROMPT, **how) for _ in range(4)]
        assert [run.result().tokens for run in runs] == [expected] * 4
        assert count.passes == PROBING + 4 * 5
