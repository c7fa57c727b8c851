"""Prompt lookup: the most recent longest match, without a scan."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

import forerun as fr
from forerun.drafters import NGram, Turn
from forerun.models import TableModel

TARGET = TableModel.random(vocab_size=4, order=1, seed=0)


def turn(tokens: list[int], budget: int = 5) -> Turn:
    return Turn(0, tokens, 1, budget, fr.Sampling(), 0, 0)


def guess(drafter: NGram, tokens: list[int], budget: int = 5) -> list[int]:
    state = drafter.start(TARGET, 1, 100)
    (found,) = drafter.propose(state, [turn(tokens, budget)], shared_noise=True)
    return found.tokens


@pytest.mark.parametrize(
    ("tokens", "budget", "wanted"),
    [
        ([1, 2, 3, 9, 1, 2, 3], 3, [9, 1, 2]),  # what followed
        ([1, 2, 5, 0, 1, 2, 6, 0, 1, 2], 2, [6, 0]),  # the most recent of two
        ([8, 1, 2, 5, 9, 1, 2, 6, 8, 1, 2], 1, [5]),  # a longer match before a more recent one
        ([1, 2, 1, 2], 6, [1, 2, 1, 2, 1, 2]),  # a loop goes on as a loop
        ([7], 4, []),  # nothing has followed anything yet
        ([7, 7], 4, [7, 7, 7, 7]),
        ([1, 2, 3], 4, []),
        ([1, 2, 1], 0, []),
    ],
)
def test_guesses_by_hand(tokens: list[int], budget: int, wanted: list[int]) -> None:
    assert guess(NGram(min_n=1), tokens, budget) == wanted


def test_min_n_and_max_n() -> None:
    tokens = [5, 1, 2, 6, 9, 2]
    assert guess(NGram(min_n=1), tokens, 1) == [6]
    assert guess(NGram(min_n=2), tokens, 1) == []
    longer = [1, 2, 3, 4, 7, 0, 2, 3, 4, 8, 1, 2, 3, 4]
    assert guess(NGram(max_n=3), longer, 1) == [8], "only three tokens are looked at"
    assert guess(NGram(max_n=4), longer, 1) == [7]


def test_growing_text_gives_what_the_whole_text_gives() -> None:
    """Indexed piece by piece, as rounds add to a text, against a search from scratch."""
    generator = random.Random(0)
    drafter = NGram(max_n=3, min_n=1)
    state: Any = drafter.start(TARGET, 1, 1000)
    text = [0]
    for _ in range(200):
        text += [generator.randrange(3) for _ in range(generator.randint(1, 4))]
        (found,) = drafter.propose(state, [turn(text, 3)], shared_noise=True)
        assert found.tokens == searched(text, 3, 3)


def searched(text: list[int], max_n: int, budget: int) -> list[int]:
    for size in range(max_n, 0, -1):
        for end in range(len(text) - 1, size - 1, -1):
            if text[end - size : end] == text[-size:]:
                copied = list(text)
                for offset in range(budget):
                    copied.append(copied[end + offset])
                return copied[len(text) :]
    return []


def test_a_released_row_forgets() -> None:
    drafter = NGram(min_n=1)
    state = drafter.start(TARGET, 2, 100)
    drafter.propose(state, [turn([1, 2, 3, 1, 2])], shared_noise=True)
    drafter.release(state, 0)
    (found,) = drafter.propose(state, [turn([3, 1, 2])], shared_noise=True)
    assert found.tokens == []


def test_a_proposal_does_not_scan_the_text() -> None:
    """Ten times the text may not cost even twice the time of a round."""

    def cost(length: int) -> float:
        drafter = NGram()
        generator = random.Random(0)
        text = [generator.randrange(1000) for _ in range(length)]
        state = drafter.start(TARGET, 1, length)
        drafter.propose(state, [turn(text)], shared_noise=True)
        best = float("inf")
        for _ in range(200):
            text.append(generator.randrange(1000))
            begin = time.perf_counter()
            drafter.propose(state, [turn(text)], shared_noise=True)
            best = min(best, time.perf_counter() - begin)
        return best

    assert cost(100_000) < 2 * cost(10_000) + 20e-6


@pytest.mark.parametrize(("min_n", "max_n"), [(0, 3), (3, 2), (-1, -1)])
def test_lengths_out_of_order(min_n: int, max_n: int) -> None:
    with pytest.raises(fr.InputError, match=f"Received min_n={min_n}, max_n={max_n}"):
        NGram(max_n=max_n, min_n=min_n)
