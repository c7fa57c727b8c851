"""Token recycling: lists from the target's own logits, walked best first."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import forerun as fr
from forerun.drafters import Guess, Outcome, Recycling, Turn
from forerun.drafters.forks import likeliest
from forerun.models import TableModel

CYCLE = TableModel(
    4, 1, {(): [0.25] * 4} | {(i,): np.roll([0.1, 0.6, 0.2, 0.1], i) for i in range(4)}
)


def propose(drafter: Recycling, state: Any, tokens: list[int], **how: Any) -> Guess:
    drafter.enter(state, 0, tokens, 1)
    one = Turn(0, how.get("budget", 4), fr.Sampling(), 0, 0, how.get("depth"))
    return drafter.propose(state, [one], shared_noise=how.get("shared_noise", True))[0]


def taught(successors: list[tuple[int, list[int]]]) -> tuple[Recycling, Any]:
    drafter = Recycling(num_successors=3)
    state = drafter.start(CYCLE, 2, 10)
    drafter.enter(state, 0, [0], 1)
    drafter.observe(state, [Outcome(0, 0, [1], (), successors)])
    return drafter, state


def test_a_chain_follows_the_first_of_each_list() -> None:
    drafter, state = taught([(1, [2, 3]), (2, [3, 0]), (3, [1, 2])])
    guess = propose(drafter, state, [0, 1])
    assert guess.tokens == [2, 3, 1, 2][: len(guess.tokens)]
    assert len(guess.tokens) >= 2
    assert propose(drafter, state, [0, 0]).tokens == [], "nothing is known about 0"


def test_a_tree_takes_the_best_first() -> None:
    drafter, state = taught([(1, [2, 3]), (2, [3, 0]), (3, [1, 2])])
    guess = propose(drafter, state, [0, 1], budget=6, depth=3)
    pairs = list(zip(guess.tokens, guess.parents or [], strict=True))
    assert pairs[0] == (2, -1)
    assert (3, -1) in pairs
    assert guess.values == sorted(guess.values or [], reverse=True)
    assert len(set(pairs)) == len(pairs) == 6


def test_ranks_that_turn_out_right_are_worth_more() -> None:
    """The second of every list is always the right one."""
    drafter, state = taught([(i, [(i + 2) % 4, (i + 1) % 4]) for i in range(4)])
    text = [0, 1]
    before = propose(drafter, state, text, budget=6, depth=3)
    for _ in range(60):
        text.append((text[-1] + 1) % 4)
        drafter.observe(state, [Outcome(0, 0, text[-1:])])
    after = propose(drafter, state, text, budget=6, depth=3)
    right = (text[-1] + 1) % 4
    assert before.tokens[0] == (1 + 2) % 4
    assert after.tokens[0] == right
    assert after.values is not None
    assert after.values[0] > 0.6


def test_the_engine_tells_what_was_likeliest() -> None:
    """After one round of a model whose law depends on the last token, every list is right."""
    answer = fr.generate(
        CYCLE, [0], drafter=Recycling(num_successors=2), tree=8, draft_length=3,
        max_new_tokens=40, sampling=fr.Sampling(temperature=0.0),
    )  # fmt: skip
    assert answer.tokens == [(i + 1) % 4 for i in range(40)]
    assert answer.stats.tokens_per_round > 2.5


def test_a_row_is_forgotten_but_the_lists_are_shared_under_match() -> None:
    drafter, state = taught([(1, [2, 3])])
    drafter.release(state, 0)
    assert propose(drafter, state, [0, 1]).tokens[:1] == [2]
    assert propose(drafter, state, [0, 1], shared_noise=False).tokens == []


@pytest.mark.parametrize(("rows", "width"), [(1, 10), (3, 256), (2, 1000), (4, 5000)])
@pytest.mark.parametrize("count", [1, 3, 8])
def test_likeliest_is_what_sorting_gives(rows: int, width: int, count: int) -> None:
    generator = np.random.default_rng(width + count)
    values = generator.normal(size=(rows, width)) - 50.0
    values[:, -1] = -40.0  # in the last block, which may be short
    found = likeliest(values, count)
    assert found.tolist() == np.argsort(-values, axis=1)[:, :count].tolist()


@pytest.mark.parametrize("how", [{"num_successors": 0}, {"worth": 0.0}, {"worth": 1.5}])
def test_settings_out_of_range(how: dict[str, Any]) -> None:
    with pytest.raises(fr.InputError, match="A setting of Recycling is out of range"):
        Recycling(**how)
