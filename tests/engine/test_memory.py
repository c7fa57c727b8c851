"""Nothing of the size of a round's laws outlives the round."""

from __future__ import annotations

import gc
import tracemalloc
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from drafting import noisy_copy
from tiny_models import VOCAB_SIZE, Architecture

import forerun as fr
from forerun import Sampling
from forerun.drafters import Model, NGram
from forerun.engine.match_on_host import AHEAD
from forerun.models import FunctionModel

WIDE = 20_000  # tokens; one row of logits is 160 kB
ROW = WIDE * 8


def wide_model(seed: int) -> FunctionModel:
    """A large vocabulary and next to no weights: the law is one of eleven rows."""
    rows = 3 * np.random.default_rng(seed).normal(size=(11, WIDE))

    def logits(ids: Any) -> Any:
        return rows[int(ids[-1]) % 11]

    return FunctionModel(logits, vocab_size=WIDE, logits=True)


@pytest.mark.parametrize("rule", ["match", pytest.param("ratio", marks=pytest.mark.slow), "block"])
def test_no_row_is_kept_between_rounds(rule: str) -> None:
    """Between any two rounds there is less than one row more than before the first, apart from the
    noise of a few positions ahead.

    During a round there are dozens: 3 requests, 5 slots, logits and laws of two models.
    """
    target, draft = wide_model(0), wide_model(1)
    how: dict[str, Any] = {
        "drafter": Model(draft), "rule": rule, "draft_length": 4, "max_new_tokens": 24,
        "sampling": Sampling(seed=1, temperature=2.0, top_p=0.9), "logprobs": 3,
    }  # fmt: skip
    fr.generate(target, [1], **{**how, "max_new_tokens": 6})  # what is made once is not counted
    tracemalloc.start()
    try:
        stream = fr.stream(target, [[1, 2], [3], [4, 5, 6]], **how)
        before = tracemalloc.get_traced_memory()[0]
        kept = [tracemalloc.get_traced_memory()[0] - before for _ in stream]
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert len(kept) > 30
    drawn_ahead = 3 * AHEAD * -(-WIDE // 256) * 16  # three rows, a float and a lane per block
    assert max(kept) < ROW + drawn_ahead, "some row of a law or of logits stayed"
    assert peak > 10 * ROW, "so much that something could have stayed"


def test_logits_die_with_their_round() -> None:
    """The same for tensors, which are not in Python's books: no reference is left to any."""
    model = Architecture("llama", "crop").build()
    target, drafter = fr.wrap(model), Model(noisy_copy(model, 0.1))
    scored: list[weakref.ref[Any]] = []
    for each in (target, drafter.model):
        watch_scores(each, scored)
    stream = fr.stream(
        target, [[1, 2], [3]], drafter=drafter, draft_length=4, max_new_tokens=20, logprobs=2,
        sampling=Sampling(seed=1),
    )  # fmt: skip
    for _ in stream:
        assert sum(ref() is not None for ref in scored) == 0
    assert len(scored) > 30


def watch_scores(model: Any, scored: list[weakref.ref[Any]]) -> None:
    score = model.score

    def watched(*arguments: Any) -> Any:
        logits = score(*arguments)
        scored.append(weakref.ref(logits))
        return logits

    model.score = watched


@pytest.mark.parametrize("num_tokens", [400, pytest.param(2000, marks=pytest.mark.slow)])
def test_memory_of_a_long_text_does_not_grow_by_the_round(num_tokens: int) -> None:
    """The peak of the last rounds is that of early ones, and a little for the text."""
    rows = 2 * np.random.default_rng(0).normal(size=(97, 512))
    target = FunctionModel(lambda ids: rows[int(ids[-1]) % 97], vocab_size=512, logits=True)
    sampling = Sampling(seed=1, temperature=0.5)
    stream = fr.stream(
        target, [1], drafter=NGram(), draft_length=4, sampling=sampling, max_new_tokens=num_tokens
    )
    tracemalloc.start()
    try:
        peaks = peaks_by_tokens(stream, every=num_tokens // 8)
    finally:
        tracemalloc.stop()
    assert len(peaks) == 8
    per_token = (peaks[-1] - peaks[1]) / (num_tokens * 6 / 8)
    print([f"{peak / 1e3:.0f} kB" for peak in peaks], f"{per_token:.0f} bytes per token")
    assert per_token < 1000, "n-grams, fates and ids; one law would be 4,096"


def peaks_by_tokens(stream: Any, every: int) -> list[int]:
    """The largest traced memory in each stretch of so many tokens."""
    peaks, count = [], 0
    tracemalloc.reset_peak()
    for piece in stream:
        count += len(piece.tokens)
        if count >= every * (len(peaks) + 1):
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.reset_peak()
    return peaks


def tensor_bytes() -> int:
    """Of all tensors alive, each storage once."""
    gc.collect()
    found = {}
    for each in gc.get_objects():
        if issubclass(type(each), torch.Tensor):
            storage = each.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
    return sum(found.values())


@pytest.mark.slow
@pytest.mark.parametrize("drafted", [False, True])
def test_tensors_of_a_long_text_are_its_keys_and_values(drafted: bool) -> None:
    """After 2,000 tokens of a transformers model nothing is there but what the text needs."""
    options = {"max_position_embeddings": 2100, "num_hidden_layers": 1}
    model = Architecture("llama", "crop", options).build()
    target, drafter = fr.wrap(model), Model(noisy_copy(model, 0.02)) if drafted else None
    fr.generate(target, [1], drafter=drafter, max_new_tokens=3)
    before = tensor_bytes()
    stream = fr.stream(
        target, [1], drafter=drafter, draft_length=4, max_new_tokens=2000, sampling=Sampling(seed=1)
    )
    sizes, count = [], 0
    for piece in stream:
        count += len(piece.tokens)
        if count >= 400 * (len(sizes) + 1):
            sizes.append(tensor_bytes() - before)
    keys_and_values = 2 * 2 * 8 * 8  # both, heads, head size, float64: bytes per slot
    models = 1 + drafted
    assert sizes[-1] <= models * keys_and_values * 2048 + VOCAB_SIZE * 8
    assert sizes[-1] >= models * keys_and_values * 1990, "or they were not counted"
