"""Prompt lookup: the most recent longest match, without a scan."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

import forerun as fr
from forerun.drafters import NGram, Outcome, Turn
from forerun.models import TableModel

TARGET = TableModel.random(vocab_size=4, order=1, seed=0)


def propose(drafter: NGram, state: Any, budget: int = 5) -> list[int]:
    turn = Turn(0, budget, fr.Sampling(), 0, 0)
    (guess,) = drafter.propose(state, [turn], shared_noise=True)
    return guess.tokens


def guess(drafter: NGram, tokens: list[int], budget: int = 5) -> list[int]:
    state = drafter.start(TARGET, 1, 100)
    drafter.enter(state, 0, tokens, 1)
    return propose(drafter, state, budget)


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
    drafter.enter(state, 0, text, 1)
    for _ in range(200):
        new = [generator.randrange(3) for _ in range(generator.randint(1, 4))]
        text += new
        drafter.observe(state, [Outcome(0, 0, new)])
        assert propose(drafter, state, 3) == searched(text, 3, 3)


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
    drafter.enter(state, 0, [1, 2, 3, 1, 2], 1)
    assert propose(drafter, state)[0] == 3
    drafter.release(state, 0)
    drafter.enter(state, 0, [3, 1, 2], 1)
    assert propose(drafter, state) == []


class CountedText(list[int]):
    """A text that counts how many of its tokens are read."""

    num_read = 0

    def __getitem__(self, place: Any) -> Any:
        tokens = super().__getitem__(place)
        self.num_read += len(tokens) if isinstance(place, slice) else 1
        return tokens

    def __iter__(self) -> Iterator[int]:
        self.num_read += len(self)
        return super().__iter__()

    def index(self, *where: Any) -> int:
        self.num_read += len(self)
        return super().index(*where)


def test_a_proposal_does_not_scan_the_text() -> None:
    """A round reads a few tokens of it, however long it is."""
    drafter, generator = NGram(), random.Random(0)
    state = drafter.start(TARGET, 1, 1000)
    drafter.enter(state, 0, [generator.randrange(30) for _ in range(1000)], 1)
    propose(drafter, state)
    text = state[0].text = CountedText(state[0].text)
    num_guessed = 0
    for _ in range(200):
        drafter.observe(state, [Outcome(0, 0, [generator.randrange(30)])])
        text.num_read = 0
        num_guessed += len(propose(drafter, state))
        assert text.num_read < 30
    assert num_guessed > 100


@pytest.mark.parametrize(("min_n", "max_n"), [(0, 3), (3, 2), (-1, -1)])
def test_lengths_out_of_order(min_n: int, max_n: int) -> None:
    with pytest.raises(fr.InputError, match=f"Received min_n={min_n}, max_n={max_n}"):
        NGram(max_n=max_n, min_n=min_n)
