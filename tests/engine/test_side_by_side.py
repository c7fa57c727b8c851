"""Several engines at once on one target and one drafter, in threads and in streams read in turn."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import zip_longest
from typing import Any

import pytest
from drafting import noisy_copy
from tiny_models import Architecture

import forerun as fr
from forerun.drafters import EarlyExit, Mixed, Model, NGram, Quantized, Suffix
from forerun.engine.steering.draft_planning import POLICIES, policy_key
from forerun.models import TableModel
from forerun.models.handover import Shelf

MODEL = Architecture("llama", "crop").build()
TARGET = fr.wrap(MODEL)
DRAFTERS: dict[str, Callable[[], Any]] = {
    "ngram": NGram,
    "suffix": lambda: Suffix(remember=True),
    "model": lambda: Model(noisy_copy(MODEL, 0.1)),
    "early exit": lambda: EarlyExit(1),
    "quantized": Quantized,
    "mixed": lambda: Mixed(Suffix(remember=True), NGram(), Model(noisy_copy(MODEL, 0.1))),
}
SLOW = ("ngram", "model", "early exit", "quantized", "mixed")
"""Two run by default with a tree; the others are in the mixture, or a `Model` with a copy."""
PROMPTS = [[1, 2, 3], [4, 5], [6, 7, 8, 9], [2, 2, 2], [9]]


def texts(outs: list[fr.Generation]) -> list[list[int]]:
    return [out.tokens for out in outs]


@cache
def plain(seed: int) -> list[list[int]]:
    """What plain decoding says."""
    sampling = fr.Sampling(temperature=0.8, seed=seed)
    return texts(
        fr.generate(
            TARGET, PROMPTS, drafter=None, sampling=sampling, max_new_tokens=8, batch_size=5
        )
    )


@pytest.mark.parametrize(
    ("name", "tree"),
    [
        *((name, None) for name in DRAFTERS if name not in SLOW),
        *(pytest.param(name, None, marks=pytest.mark.slow) for name in SLOW),
        ("early exit", 6),
        ("mixed", 6),
    ],
)
def test_threads_share_a_target_and_a_drafter(name: str, tree: int | None) -> None:
    drafter = DRAFTERS[name]()

    def answers(number: int) -> Any:
        sampling = fr.Sampling(temperature=0.8, seed=number)
        how: dict[str, Any] = {"sampling": sampling, "max_new_tokens": 8, "batch_size": 2}
        return fr.generate(TARGET, PROMPTS, drafter=drafter, tree=tree, **how)

    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(answers, range(4)))
    assert [texts(outs) for outs in found] == [plain(number) for number in range(4)]
    assert not any(out.stats.notes for outs in found for out in outs)


@pytest.mark.parametrize(
    "name", [pytest.param("suffix", marks=pytest.mark.slow), "early exit", "mixed"]
)
def test_streams_read_in_turn(name: str) -> None:
    drafter = DRAFTERS[name]()
    how: dict[str, Any] = {"max_new_tokens": 16}
    streams = [
        fr.stream(TARGET, PROMPTS, drafter=drafter, sampling=fr.Sampling(seed=seed), **how)
        for seed in range(3)
    ]
    for _ in zip_longest(*streams):
        pass
    for seed, stream in enumerate(streams):
        plain = fr.generate(TARGET, PROMPTS, drafter=None, sampling=fr.Sampling(seed=seed), **how)
        assert texts(stream.results()) == texts(plain)


def test_what_one_engine_learns_is_not_another_s() -> None:
    """While a stream is open, what it learns is its own; when it ends, the next one goes on."""
    target, drafter = TableModel.random(vocab_size=7, order=2, seed=0), Suffix()
    how: dict[str, Any] = {"drafter": drafter, "max_new_tokens": 40}
    first, second = (fr.stream(target, [1, number], **how) for number in (1, 2))
    next(first)
    next(second)
    policies = [stream._run.engine._planner._policy for stream in (first, second)]
    assert policies[0] is not policies[1]
    key = policy_key(drafter, 1, False, None)
    first.close()
    assert POLICIES.take(target, key) is policies[0]
    second.close()
    assert POLICIES.take(target, key) is policies[1]
    assert POLICIES.take(target, key) is None


def test_suffix_remembers_where_that_is_asked_for() -> None:
    target = TableModel.random(vocab_size=50, order=1, seed=3)
    how: dict[str, Any] = {"max_new_tokens": 30, "draft_length": 4, "sampling": fr.Sampling(seed=1)}
    for drafter, gains in ((Suffix(remember=True), True), (Suffix(), False)):
        first, second = (fr.generate(target, [1], drafter=drafter, **how) for _ in range(2))
        assert first.tokens == second.tokens
        assert (second.stats.accepted > first.stats.accepted) is gains
    elsewhere = fr.generate(
        TableModel.random(vocab_size=50, order=1, seed=3), [1], drafter=Suffix(remember=True), **how
    )
    assert elsewhere.stats.accepted == first.stats.accepted


def test_a_shelf_gives_a_thing_to_one_only() -> None:
    shelf: Shelf[list[int]] = Shelf()
    owner = TableModel.random(vocab_size=3, order=1, seed=0)
    assert shelf.take(owner) is None
    shelf.put([1], owner)
    shelf.put([2], owner, "other")
    assert (shelf.take(owner), shelf.take(owner)) == ([1], None)
    assert shelf.take(owner, "other") == [2]
    shelf.put([3], [])  # a list cannot be referred to: nothing is kept, nothing fails
    assert shelf.take([]) is None
