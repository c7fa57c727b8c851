"""The lean pass against the model it was made from."""

from __future__ import annotations

import copy
import pickle
import random
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import VOCAB_SIZE, Architecture, Driver, fresh_logits, largest, random_tokens

pytest.importorskip("numba")

import forerun as fr
from forerun.base.errors import InputError, UnsupportedError
from forerun.lean.formats import Format
from forerun.lean.model import LeanModel
from forerun.lean.page_tile import QUERIES
from forerun.lean.plan import MOST_TOKENS
from forerun.lean.storage import rounded
from forerun.loading.cpu_pass import choose
from forerun.models import HuggingFaceModel, LanguageModel

TOLERANCE = 1e-4
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
WINDOWED = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}

GEMMA = {
    "num_hidden_layers": 7,
    "head_dim": 16,
    "query_pre_attn_scalar": 20,
    "sliding_window": 6,
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    },
}


def tiny(kind: str = "llama", **options: Any) -> Any:
    return Architecture(kind, "", options, dtype=torch.float32).build()


ARCHITECTURES = {
    "llama": ("llama", {}),
    "llama, tied, one key head": ("llama", {"tie_word_embeddings": True, "num_key_value_heads": 1}),
    "llama, no sharing, biases, head 64": (
        "llama",
        {"num_key_value_heads": 4, "head_dim": 64, "attention_bias": True, "mlp_bias": True},
    ),
    "llama, llama3 rope, head 128": ("llama", {"head_dim": 128, "rope_parameters": LLAMA3}),
    "llama, odd sizes": ("llama", {"hidden_size": 36, "intermediate_size": 50, "head_dim": 10}),
    "llama, a window that its code knows nothing of": ("llama", {"sliding_window": 6}),
    "mistral": ("mistral", {"sliding_window": None, "head_dim": 16}),
    "qwen2": ("qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("qwen3", {"head_dim": 16}),
    "qwen3, 12 queries a key": ("qwen3", {"num_attention_heads": 24, "head_dim": 8}),
    "mistral, window": ("mistral", {"sliding_window": 8, "head_dim": 16}),
    "qwen2, window in one layer": ("qwen2", WINDOWED),
    "ministral": ("ministral", {"sliding_window": 8, "head_dim": 16}),
    "smollm3, a layer that turns nothing": ("smollm3", {"no_rope_layers": [1, 0]}),
    "phi3, fused": ("phi3", {"sliding_window": 8}),
    "seed-oss, biases": (
        "seed_oss",
        {"head_dim": 16, "attention_bias": True, "attention_out_bias": True, "mlp_bias": True},
    ),
    "gemma3": ("gemma3_text", GEMMA),
    "gemma3, untied, no sharing": (
        "gemma3_text",
        {**GEMMA, "tie_word_embeddings": False, "num_key_value_heads": 4, "sliding_window": 3},
    ),
}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_ragged_rows_equal_fresh_passes(name: str) -> None:
    kind, options = ARCHITECTURES[name]
    model = tiny(kind, **options)
    for name, weight in model.named_parameters():
        if "norm" in name:  # ones would hide a forgotten multiplication
            torch.nn.init.uniform_(weight, 0.5, 1.5)
    for module in model.modules():
        if getattr(module, "bias", None) is not None:
            torch.nn.init.normal_(module.bias)
    lean = LeanModel(model, num_threads=2)
    assert isinstance(lean, LanguageModel)
    assert lean.vocab_size == VOCAB_SIZE
    assert lean.max_context == 128
    assert Driver(lean, model, num_rows=3).play(num_rounds=25, seed=0) < TOLERANCE


def test_a_long_prompt_takes_several_passes() -> None:
    model = tiny(max_position_embeddings=1024)
    lean = LeanModel(model, num_threads=2)
    state = lean.start(2, 600)
    generator = random.Random(0)
    long, short = random_tokens(generator, 3 * MOST_TOKENS + 5), random_tokens(generator, 40)
    logits = lean.score(state, [1, 0], [long, short], [MOST_TOKENS + 9, 40])
    assert largest(logits[0] - fresh_logits(model, long)[-MOST_TOKENS - 9 :]) < TOLERANCE
    assert largest(logits[1, :40] - fresh_logits(model, short)) < TOLERANCE
    lean.commit(state, [1], [len(long)])
    logits = lean.score(state, [1], [[5]], [1])
    assert largest(logits[0] - fresh_logits(model, [*long, 5])[-1:]) < TOLERANCE


@pytest.mark.parametrize(("num_keys", "window"), [(1, None), (3, None), (5, None), (3, 300)])
def test_threads_that_share_attention_change_no_bit(num_keys: int, window: int | None) -> None:
    """A long text: each thread takes as many whole tiles as the others, and they share the rest."""
    how = {"sliding_window": window, "use_sliding_window": True, "max_window_layers": 1}
    model = tiny(
        "qwen2", num_attention_heads=3 * num_keys, num_key_value_heads=num_keys, head_dim=16,
        max_position_embeddings=1024, **(how if window else {}),
    )  # fmt: skip
    generator = random.Random(num_keys)
    text, other = random_tokens(generator, 700), random_tokens(generator, 333)
    expected, num_shared = None, set()
    for num_threads in (1, 2, 3, 4):
        lean = LeanModel(model, num_threads=num_threads)
        state, found = lean.start(2, 720), []
        split_for = state._split_for

        def noted(plan: Any, split_for: Any = split_for, state: Any = state) -> Any:
            split = split_for(plan)
            if state._crew.size > 1 and state.lengths[0]:  # several threads, after the prompt
                num_shared.add((len(split) > 0, len(plan.tiles) * QUERIES > len(split)))
            return split

        state._split_for = noted  # type: ignore[method-assign]
        lean.score(state, [0, 1], [text[:690], other[:300]], [1, 1])
        lean.commit(state, [0, 1], [690, 300])
        for count in (1, 2, 3, 5):
            logits = lean.score(state, [0], [text[690 : 690 + count]], [count])
            found.append(logits[0])
            both = lean.score(state, [0, 1], [text[690 : 690 + count], other[300:302]], [count, 2])
            found += [both[0, :count], both[1, :2]]
            for row in (0, 1):
                state.forget(row)
        logits = torch.cat(found)
        expected = logits if expected is None else expected
        assert torch.equal(logits, expected)
    assert (True, False) in num_shared or num_keys > 1, "all tiles shared"
    assert (True, True) in num_shared or num_keys == 1, "some shared"
    assert (False, True) in num_shared, "none shared"


def test_logits_have_the_same_bits_in_every_company() -> None:
    model = tiny("qwen2", num_attention_heads=6, num_key_value_heads=2, head_dim=16)
    generator = random.Random(1)
    text, other = random_tokens(generator, 70), random_tokens(generator, 51)
    lean = LeanModel(model, num_threads=1)
    state = lean.start(1, 80)
    whole = lean.score(state, [0], [text], [len(text)])[0]

    threaded = LeanModel(model, num_threads=3)
    state = threaded.start(2, 200)
    done, parts = 0, []
    while done < len(text):
        count = min(generator.randint(1, 9), len(text) - done)
        draft = random_tokens(generator, generator.randint(0, 5))
        tokens = [text[done : done + count] + draft, other[: generator.randint(1, 51)]]
        logits = threaded.score(state, [0, 1], tokens, [count + len(draft), 1])
        parts.append(logits[0, :count])
        threaded.commit(state, [0, 1], [count, 0])
        done += count
    assert torch.equal(torch.cat(parts), whole)


def test_scoring_again_reuses_what_was_fed(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny()
    lean = LeanModel(model, num_threads=1)
    state = lean.start(1, 32)
    fed: list[int] = []
    original = state._pass
    monkeypatch.setattr(
        state, "_pass", lambda plan, out: (fed.append(len(plan.ids)), original(plan, out))[1]
    )
    text = [3, 1, 4, 1, 5]
    for end in (3, 4, 5):
        logits = lean.score(state, [0], [text[:end]], [1])
    assert fed == [3, 1, 1]
    assert largest(logits[0] - fresh_logits(model, text)[-1:]) < TOLERANCE
    lean.score(state, [0], [[3, 1, 9]], [1])  # another branch: only what differs
    assert fed == [3, 1, 1, 1]


def test_int8_is_another_target() -> None:
    """It equals a model whose weights were rounded the same way, and says so in its name."""
    model = tiny("qwen2", intermediate_size=64)
    text = random_tokens(random.Random(2), 20)
    exact = fresh_logits(model, text)
    lean = LeanModel(model, int8=True)
    logits = lean.score(lean.start(1, 32), [0], [text], [20])[0]
    for module in model.modules():
        if type(module) is torch.nn.Linear:
            module.weight.data = torch.from_numpy(rounded(module.weight.data.numpy()))
    assert largest(logits - fresh_logits(model, text)) < TOLERANCE
    assert largest(logits - exact) > 100 * TOLERANCE
    assert lean.name == "Qwen2ForCausalLM-int8"
    with pytest.raises(UnsupportedError, match="multiples of 32"):
        LeanModel(tiny(intermediate_size=48), int8=True)


def test_weights_that_were_fewer_bits_give_the_same_logits() -> None:
    model = tiny(intermediate_size=64).to(torch.bfloat16).to(torch.float32)
    text = random_tokens(random.Random(3), 20)
    lean = LeanModel(model)
    assert set(lean._weights.matrices.format) == {Format.BFLOAT16}
    logits = lean.score(lean.start(1, 32), [0], [text], [20])[0]
    assert largest(logits - fresh_logits(model, text)) < TOLERANCE


def adapted(model: Any) -> Any:
    class Adapter(torch.nn.Linear):
        pass

    model.model.layers[0].mlp.up_proj = Adapter(32, 48, bias=False)
    return model


def hooked(model: Any) -> Any:
    model.model.layers[0].register_forward_hook(lambda *_: None)
    return model


def changed(model: Any, path: str, value: Any) -> Any:
    """Something of its second layer is set by hand."""
    owner, _, name = path.rpartition(".")
    setattr(model.model.layers[1].get_submodule(owner), name, value)
    return model


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: tiny("gpt2"), "not one of"),
        (lambda: tiny("gemma2", head_dim=16), "capped attention"),
        (lambda: tiny(hidden_act="gelu"), "activation is gelu"),
        (lambda: tiny("gemma3_text", **GEMMA, final_logit_softcapping=30.0), "capped"),
        (lambda: tiny("gemma3_text", **GEMMA, use_bidirectional_attention=True), "see later"),
        (lambda: tiny(rope_parameters=DYNAMIC), "rotary table"),
        (lambda: tiny().double(), "32 or 16 bits"),
        (lambda: adapted(tiny()), "replaced"),
        (lambda: hooked(tiny()), "hooks"),
        (lambda: changed(tiny(), "self_attn.scaling", 0.1), "scale their attention"),
        (lambda: changed(tiny(), "mlp.act_fn", torch.nn.GELU()), "another activation"),
        (lambda: changed(tiny(), "input_layernorm.variance_epsilon", 0.1), "norms add"),
    ],
)
def test_what_it_does_not_compute_is_refused(make: Any, reason: str) -> None:
    model = make()
    with pytest.raises(UnsupportedError, match=reason):
        LeanModel(model)
    plain = HuggingFaceModel(model)
    assert choose(plain) is plain
    with pytest.raises(UnsupportedError, match=reason):
        choose(plain, lean=True)


def test_bad_input_is_refused_before_it_reaches_memory() -> None:
    lean = LeanModel(tiny(), num_threads=1)
    state = lean.start(2, 16)
    with pytest.raises(InputError, match="vocabulary"):
        lean.score(state, [0], [[VOCAB_SIZE]], [1])
    with pytest.raises(InputError, match="distinct"):
        lean.score(state, [2], [[1]], [1])
    lean.score(state, [0], [[1, 2]], [1])
    with pytest.raises(InputError, match="can keep at most"):
        lean.commit(state, [0], [3])


def test_weights_are_copied_and_numbers_are_finite() -> None:
    model = tiny()
    lean = LeanModel(model, num_threads=1)
    state = lean.start(1, 16)
    before = lean.score(state, [0], [[1, 2, 3]], [3])
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight.zero_()
    state = lean.start(1, 16)
    assert torch.equal(lean.score(state, [0], [[1, 2, 3]], [3]), before)
    assert np.isfinite(before.numpy()).all()


def test_an_engine_reads_arrays_and_others_get_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    model, kinds = LeanModel(tiny()), set()
    score = model.score

    def watched(*arguments: Any) -> Any:
        logits = score(*arguments)
        kinds.add(type(logits))
        return logits

    monkeypatch.setattr(model, "score", watched)
    fr.generate(model, [1, 2, 3], drafter=None, max_new_tokens=4)
    assert kinds == {np.ndarray}
    assert torch.is_tensor(model.score(model.start(1), [0], [[1, 2, 3]], [1]))


def test_it_says_what_to_do_instead_of_pickling_it() -> None:
    lean = LeanModel(tiny())
    with pytest.raises(UnsupportedError, match=r"cannot be pickled. Received LeanModel.*Load it"):
        pickle.dumps(lean)
    with pytest.raises(UnsupportedError, match=r"cannot be deeply copied.*Pass it on as it is"):
        copy.deepcopy(lean)
    prompt = [1, 2, 3]
    assert fr.generate(copy.copy(lean), prompt).tokens == fr.generate(lean, prompt).tokens
