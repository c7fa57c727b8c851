"""Lines that are begun before they are asked for are those that would have been drawn."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("numba")

from test_heads_lean_runner import VOCAB_SIZE, lean_runner, network

from forerun.drafters.base import Guess, Outcome, Turn
from forerun.drafters.heads.listening import Listening
from forerun.sampling.options import Sampling

IDS = np.sort(np.random.default_rng(0).permutation(VOCAB_SIZE)[:40])
GREEDY, WARM = Sampling(), Sampling(temperature=0.8)
PROMPT = 5


class Conversation:
    """Rows of an engine that tell a drafter what it would be told, and count their tokens."""

    def __init__(self, num_threads: int, num_rows: int = 2) -> None:
        self.heard = Listening(VOCAB_SIZE, lean_runner(network(), num_threads), num_rows, 400)
        self.num_given = [0] * num_rows
        self.num_begun = 0

    def enter(self, row: int) -> None:
        self.num_given[row] = 0
        self.heard.texts.enter(row, range(PROMPT), PROMPT)
        self.tell(row, PROMPT, seed=row)

    def leave(self, row: int) -> None:
        self.heard.texts.release(row)
        self.heard.release(row)

    def tell(self, row: int, count: int, seed: int) -> None:
        """So many tokens were processed, and after a first round as many given."""
        torch.manual_seed(seed)
        pick = random.Random(seed)
        given = 1 if self.num_given[row] == 0 else count
        tokens = [pick.randrange(VOCAB_SIZE) for _ in range(given)]
        self.num_given[row] += given
        num_processed = PROMPT + self.num_given[row] - 1
        states = torch.randn(count, 96)
        outcome = Outcome(row, 0, tokens, states=states, num_processed=num_processed)
        self.heard.texts.observe([outcome])
        self.heard.hear(outcome)
        before = self.heard._ahead
        self.heard.look_ahead()
        self.num_begun += self.heard._ahead is not before

    def turn(self, row: int, sampling: Sampling, budget: int, room: int | None = None) -> Turn:
        position = self.num_given[row]
        return Turn(row, budget, sampling, 7, position, worth=0.02, room=room)

    def ask(self, *turns: Turn) -> list[Guess] | None:
        return self.heard.lines(turns, IDS)


def both() -> list[Conversation]:
    """One with a helper, and one that has none to begin anything ahead."""
    return [Conversation(num_threads) for num_threads in (2, 1)]


def test_a_line_begun_ahead_is_the_line_itself() -> None:
    """Rounds of one to four tokens, some of them without an ask; other options now and then."""
    pick = random.Random(1)
    ahead, alone = pair = both()
    for each in pair:
        each.enter(0)
    num_guessed, last_budget = 0, 6
    for number in range(60):
        if pick.random() < 0.1:
            for each in pair:
                each.leave(0)
                each.enter(0)
        sampling, budget = pick.choice([GREEDY, GREEDY, GREEDY, WARM]), pick.choice([6, 6, 2, 1])
        count, is_asked = pick.randint(1, 4), pick.random() < 0.8
        found: list[Any] = []
        for each in pair:
            if is_asked:
                found.append(each.ask(each.turn(0, sampling, budget)))
            each.tell(0, count, seed=number)
        if is_asked and found[0] is not None:  # None: another line was begun; its law is there
            (begun,), (whole,) = found
            count = len(begun.tokens)  # no more than the turn before asked for
            assert begun.tokens == whole.tokens[:count]
            assert begun.values == whole.values[:count]
            assert count >= min(len(whole.tokens), last_budget)
            num_guessed += count
        last_budget = budget if is_asked else last_budget
    assert ahead.num_begun > 20
    assert alone.num_begun == 0
    assert num_guessed > 40


def test_what_was_begun_for_another_turn_still_counts_as_read() -> None:
    """The line is thrown away, but the entries before it are not: drafts go on from their law."""
    ahead, alone = pair = both()
    for each in pair:
        each.enter(0)
        each.ask(each.turn(0, GREEDY, 4))
        each.tell(0, 2, seed=1)
    assert ahead.num_begun == 1
    assert ahead.ask(ahead.turn(0, WARM, 4)) is None
    laws = [each.heard.begin([0]) for each in pair]
    np.testing.assert_array_equal(*laws)
    assert alone.num_begun == 0


def test_nothing_is_begun_for_several_rows_nor_where_nothing_can_follow() -> None:
    ahead, _ = both()
    for row in (0, 1):
        ahead.enter(row)
    turns = [ahead.turn(row, GREEDY, 4) for row in (0, 1)]
    assert ahead.ask(*turns) is not None
    ahead.tell(0, 1, seed=1)
    assert ahead.ask(ahead.turn(0, GREEDY, 4, room=2)) is not None
    ahead.tell(0, 1, seed=2)
    assert ahead.num_begun == 0


def test_rows_may_come_and_go_while_a_line_is_under_way() -> None:
    ahead, alone = both()
    for each in (ahead, alone):
        each.enter(0)
        each.ask(each.turn(0, GREEDY, 4))
        each.tell(0, 1, seed=1)
        each.enter(1)
        first = each.ask(each.turn(1, GREEDY, 4))
        each.leave(0)
        each.tell(1, 1, seed=2)
        each.leave(1)
        each.enter(1)
        assert first is not None
        assert each.ask(each.turn(1, GREEDY, 4)) == first
    assert ahead.num_begun == 2
