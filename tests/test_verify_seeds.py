"""Whose noise a call of `verify` meets: fresh without a seed, independent between rows with one."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import forerun as fr
from forerun import verification
from forerun.models import TableModel
from forerun.noise.race import fold
from libraries import Library, largest_bias

TARGET = np.array([[0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4], [0.25, 0.25, 0.25, 0.25]])
DRAFT = np.array([[0.1, 0.2, 0.3, 0.4], [0.4, 0.3, 0.2, 0.1]])
RULES = ["match", "ratio", "block"]


def drafts(count: int, seed: int) -> Any:
    """`count` drafts of two tokens, drawn from DRAFT by NumPy, (count, 2)."""
    generator = np.random.default_rng(seed)
    return np.stack([generator.choice(4, size=count, p=row) for row in DRAFT], axis=1)


def bias_of(first: Any) -> float:
    """Total variation of the first emitted tokens (N,) from the target's law."""
    return float(np.abs(np.bincount(first, minlength=4) / len(first) - TARGET[0]).sum() / 2)


@pytest.mark.parametrize("count", [900, pytest.param(6_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("rule", RULES)
def test_calls_without_a_seed_follow_the_law(
    rule: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system's entropy is replaced by a fixed stream, or the test would be as random as the
    calls are.

    Over the choice of that stream, right calls fail with odds of 1e-7 at most, and a bias of 0.17
    in 900 calls, or of 0.066 in 6,000, is missed with odds of 1e-3; reused coins have 0.22.
    """
    monkeypatch.setattr(verification.secrets, "randbits", random.Random(0).getrandbits)
    first = []
    for tokens in drafts(count, seed=1):
        draft = fr.Draft.sampled(tokens[None], DRAFT[None])
        first.append(fr.verify(draft, TARGET[None], rule=rule).tokens()[0][0])
    assert bias_of(first) <= largest_bias(4, count, 1e-7)


@pytest.mark.parametrize("rule", RULES)
def test_rows_under_one_seed_follow_the_law(rule: str) -> None:
    """Right rows fail with odds of 1e-7 at most; a bias of 0.025 is missed with odds of 1e-3."""
    tokens = drafts(40_000, seed=2)
    draft = fr.Draft.sampled(tokens, np.broadcast_to(DRAFT, (40_000, 2, 4)))
    target = np.broadcast_to(TARGET, (40_000, 3, 4))
    verdict = fr.verify(draft, target, rule=rule, seed=3)
    assert bias_of([row[0] for row in verdict.tokens()]) <= largest_bias(4, 40_000, 1e-7)


@pytest.mark.parametrize("rule", RULES)
def test_a_call_without_a_seed_can_be_repeated(lib: Library, rule: str) -> None:
    tokens = drafts(64, seed=4)
    draft = fr.Draft.sampled(
        lib.array(tokens), lib.array(np.broadcast_to(DRAFT, (64, 2, 4)).copy())
    )
    target = lib.array(np.broadcast_to(TARGET, (64, 3, 4)).copy())
    first, second = (fr.verify(draft, target, rule=rule) for _ in range(2))
    assert first.seed != second.seed
    assert first.tokens() != second.tokens()  # 64 rows alike by chance: odds below 1e-12
    again = fr.verify(draft, target, rule=rule, seed=first.seed)
    assert (again.tokens(), again.seed) == (first.tokens(), first.seed)


def test_one_seed_is_folded_with_the_number_of_the_row(lib: Library) -> None:
    """A row meets the noise of its own seed, whatever rows there are beside it."""
    for count in (1, 5, 40):  # few rows are folded one by one, many at once
        draft = fr.Draft.point(lib.array(np.zeros((count, 0), dtype=np.int64)))
        target = lib.array(np.broadcast_to(TARGET[:1], (count, 1, 4)).copy())
        verdict = fr.verify(draft, target, seed=9)
        seeds = [fold(9, row) for row in range(count)]
        assert fr.verify(draft, target, seed=seeds).tokens() == verdict.tokens()
        assert (len(set(seeds)), seeds[0], verdict.seed) == (count, 9, 9)


def test_a_sequence_has_one_seed_for_each_row() -> None:
    draft = fr.Draft.point(np.zeros((3, 0), dtype=np.int64))
    target = np.broadcast_to(TARGET[:1], (3, 1, 4))
    verdict = fr.verify(draft, target, seed=[7, 7, 8])
    (first,), (second,), _ = verdict.tokens()
    assert first == second
    assert verdict.seed == [7, 7, 8]


def test_trees_without_a_seed_are_random_too() -> None:
    tree = fr.Tree((-1, -1))
    draft = fr.Draft.point([[0, 1]], tree=tree)
    verdicts = [fr.verify(draft, TARGET[None], rule="match") for _ in range(40)]
    assert len({tuple(verdict.tokens()[0]) for verdict in verdicts}) > 3  # else: odds below 1e-6
    repeated = [fr.verify(draft, TARGET[None], seed=verdict.seed) for verdict in verdicts]
    assert [each.tokens() for each in repeated] == [each.tokens() for each in verdicts]


def test_prompts_that_share_a_seed_are_answered_as_if_alone() -> None:
    """`generate` does not fold: a prompt's text is a function of that prompt and its seed, so
    equal prompts get equal texts, in any company; n asks for several."""
    target = TableModel.random(vocab_size=50, order=1, seed=0)
    sampling = fr.Sampling(seed=5)
    prompts = [[0], [1, 2], [0]]
    together = fr.generate(target, prompts, drafter=None, sampling=sampling, max_new_tokens=12)
    alone = [
        fr.generate(target, one, drafter=None, sampling=sampling, max_new_tokens=12)
        for one in prompts
    ]
    assert [out.tokens for out in together] == [out.tokens for out in alone]
    assert together[0].tokens == together[2].tokens
    several = fr.generate(
        target, [0], drafter=None, sampling=fr.Sampling(seed=5, n=3), max_new_tokens=12
    )
    assert several[0].tokens == alone[0].tokens
    assert len({tuple(out.tokens) for out in several}) == 3
