"""The policy for captured lengths, in a simulated world whose rounds fly one plan ahead."""

from __future__ import annotations

import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from forerun.engine.proposal import Drafted, Proposal
from forerun.engine.steering.ladder_policy import LadderPolicy, Rungs
from forerun.engine.steering.policy import BUDGET

LENGTHS = (0, 1, 2, 3, 5, 7)
NUM_TOKENS = 256


def rungs(num_requests: int) -> Rungs:
    size = 1 << (num_requests - 1).bit_length()
    lengths = [length for length in LENGTHS if size * (length + 1) <= 128]
    return Rungs(size, lengths, [1 + 0.13 * length for length in lengths])


def cost(size: int, length: int) -> float:
    """Milliseconds of a round on a GPU: steps where the pass has more tokens."""
    tokens = size * (length + 1)
    return 4.2 + 0.3 * (tokens > 16) + 0.3 * (tokens > 32) + 1.2 * (tokens > 64) + 0.55 * length


def request() -> Any:
    return SimpleNamespace(
        tokens=[0],
        stats=SimpleNamespace(rounds=2),
        sampling=SimpleNamespace(temperature=0.0),
        most_guesses=lambda length: length,
    )


class World:
    """Batches of requests, answered to the end; a plan is executed one round later."""

    def __init__(self, num_rows: int, rate: float, policy: LadderPolicy | None, length: int = 0):
        self.num_rows, self.rate, self.policy, self.length = num_rows, rate, policy, length
        self.random = random.Random(0)
        self.lengths: list[int] = []
        if policy is not None:
            policy.ladder = rungs

    def speed(self, num_calls: int) -> float:
        """Tokens a second."""
        return self.num_rows * NUM_TOKENS * num_calls / sum(self.call() for _ in range(num_calls))

    def call(self) -> float:
        """Seconds of one batch."""
        left, seconds = [NUM_TOKENS] * self.num_rows, 0.0
        requests = [request() for _ in left]
        for row, one in enumerate(requests):
            if self.policy is not None:
                self.policy.enter(row, one)
        flying: tuple[dict[int, int], bool] | None = None
        while rows := [row for row, tokens in enumerate(left) if tokens]:
            plan = self._plan(rows, requests, left)
            (asked, is_trial), flying = flying or plan, plan
            drafts = [Proposal([0] * min(asked.get(row, 0), left[row] - 1)) for row in rows]
            paths = [range(self._num_right(len(draft.tokens))) for draft in drafts]
            for row, path in zip(rows, paths, strict=True):
                left[row] -= len(path) + 1
            offer = rungs(len(rows))
            most = max(len(draft.tokens) for draft in drafts)
            length = min(length for length in (*offer.lengths, 99) if length >= most)
            took = cost(offer.size, length) * (1 + 0.03 * self.random.random())
            took += 5.0 * (self.random.random() < 0.01)  # somebody else
            seconds += took
            self.lengths.append(length)
            if self.policy is not None:
                drafted = Drafted(drafts, length or None, is_trial)
                some = [requests[row] for row in rows]
                self.policy.learn(rows, some, drafted, paths, [0.0, took])
        for row in range(self.num_rows):
            if self.policy is not None:
                self.policy.leave(row)
        return seconds

    def _plan(
        self, rows: Sequence[int], requests: Sequence[Any], left: Sequence[int]
    ) -> tuple[dict[int, int], bool]:
        rooms = [left[row] - 1 for row in rows]
        if self.policy is None:
            return dict.fromkeys(rows, self.length), False
        choice = self.policy.choose(rows, [requests[row] for row in rows], rooms)
        return dict(zip(rows, choice.lengths, strict=True)), choice.is_trial

    def _num_right(self, count: int) -> int:
        return next((i for i in range(count) if self.random.random() >= self.rate), count)


@pytest.mark.parametrize(
    ("num_rows", "rate"),
    [
        (1, 0.05),
        (32, 0.8),
        pytest.param(8, 0.3, marks=pytest.mark.slow),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in [(8, 0.05), (32, 0.05)]),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in [(1, 0.3), (32, 0.3)]),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in [(1, 0.8), (8, 0.8)]),
    ],
)
def test_it_comes_close_to_the_best_length(num_rows: int, rate: float) -> None:
    """From the second batch on."""
    num_calls = 40 if num_rows == 1 else 8
    best = max(
        World(num_rows, rate, None, length).speed(num_calls) for length in rungs(num_rows).lengths
    )
    world = World(num_rows, rate, LadderPolicy())
    world.call()
    assert world.speed(num_calls) > 0.97 * best


def test_lengths_are_those_on_offer() -> None:
    world = World(8, 0.7, LadderPolicy())
    world.call()
    assert set(world.lengths) <= set(LENGTHS)
    assert len(set(world.lengths)) > 2  # prices of others are learned too


def test_a_trial_is_charged_for_its_own_round() -> None:
    """Drafts are never right: every trial costs its draft, a plain round costs nothing."""
    policy = LadderPolicy()
    policy.ladder = rungs
    one = request()
    policy.enter(0, one)
    for _ in range(200):
        policy.learn([0], [one], Drafted([Proposal([])], None), [range(0)], [0.0, 4.0])
    assert policy.ledger.debt == 0
    drafted = Drafted([Proposal([0])], 1, is_trial=True)
    policy.learn([0], [one], drafted, [range(0)], [0.0, 6.0])
    assert policy.ledger.debt == pytest.approx(0.5)
    policy.learn([0], [one], Drafted([Proposal([0])], 1), [range(0)], [0.0, 6.0])
    assert policy.ledger.debt == pytest.approx(0.5)


def test_where_drafts_fail_trials_keep_to_their_budget() -> None:
    world = World(1, 0.0, LadderPolicy())
    for _ in range(4):
        world.call()
    late = world.lengths[len(world.lengths) // 2 :]
    assert sum(length > 0 for length in late) < 0.05 * len(late)
    assert world.policy is not None
    assert world.policy.ledger.debt < BUDGET + 1


def test_what_is_not_timed_changes_no_price() -> None:
    policy = LadderPolicy()
    policy.ladder = rungs
    one = request()
    policy.enter(0, one)
    for _ in range(5):
        policy.learn([0], [one], Drafted([Proposal([])], None), [range(0)], [0.0, 4.0])
    before = policy.plain_seconds(1)
    policy.learn([0], [one], Drafted([Proposal([])], None), [range(0)], None)  # it captured
    fresh = SimpleNamespace(
        tokens=[0], stats=SimpleNamespace(rounds=1), most_guesses=lambda length: length
    )
    policy.learn([0], [fresh], Drafted([Proposal([])], None), [range(0)], [0.0, 90.0])
    assert policy.plain_seconds(1) == before == pytest.approx(4.0)


def test_beside_prompts_that_are_being_read_no_length_is_tried() -> None:
    """Drafts are never right; what a trial costs is seen in rounds that can be timed alone."""
    policy = LadderPolicy()
    policy.ladder = rungs
    one, tried = request(), 0
    policy.enter(0, one)
    for number in range(400):
        is_timed = number % 17 == 16
        choice = policy.choose([0], [one], [8], is_timed=is_timed)
        (length,) = choice.lengths
        tried += number > 100 and not is_timed and length > 0
        drafted = Drafted([Proposal([0] * length)], length or None, choice.is_trial)
        policy.learn([0], [one], drafted, [range(0)], [0.0, 4.0 + length] if is_timed else None)
    assert not tried


def test_rounds_are_timed_while_requests_come_and_go() -> None:
    """Their number is another one in every round, but all have a place in rounds of one size."""
    policy = LadderPolicy()
    policy.ladder = rungs
    requests = [request() for _ in range(32)]
    for row, one in enumerate(requests):
        policy.enter(row, one)
    for number in range(40):
        rows = range(29 + number % 3)
        length = number // 2 % 2
        drafts = [Proposal([0] * length) for _ in rows]
        some, paths = requests[: len(rows)], [range(0) for _ in rows]
        policy.learn(rows, some, Drafted(drafts, length or None), paths, [0.0, 4.0 + 3 * length])
    assert policy.plain_seconds(30) == pytest.approx(4.0)
    assert policy._seconds(30).usual(1) == pytest.approx(7.0)


def test_what_a_drafter_misses_while_prompts_are_read_is_part_of_its_price() -> None:
    """But not what it missed because it was not asked."""
    policy = LadderPolicy()
    policy.ladder = rungs
    one = request()
    policy.enter(0, one)

    def learn(length: int, seconds: float | None) -> None:
        spent = None if seconds is None else [0.0, seconds]
        policy.learn([0], [one], Drafted([Proposal([0] * length)], length or None), [()], spent)

    for _ in range(5):
        for length, seconds in ((0, 4.0), (1, 9.0), (1, 5.0)):
            learn(length, seconds)
    assert policy._seconds(1).usual(1) == pytest.approx(5.0)
    for _ in range(400):
        learn(0, None)
        learn(1, 6.0)
    assert policy._seconds(1).usual(1) == pytest.approx(6.0, rel=0.01)
