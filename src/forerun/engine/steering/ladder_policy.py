"""How far to draft where rounds come in a few lengths, the same for all requests of a round.

A round that is captured as a whole costs what its length costs, however many of its slots are used.
So its price is the time from one result to the next, by length, and there is one length to choose:
the one that makes the most tokens per second.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import exp
from typing import NamedTuple

from forerun.engine.proposal import Drafted
from forerun.engine.request import Request
from forerun.engine.steering.draft_policy import Choice
from forerun.engine.steering.measurements import NUM_TIMED, Experience, Timings
from forerun.engine.steering.policy import LONGEST_WAIT, PayingPolicy
from forerun.engine.steering.why_few import Price

NUM_TRIES = 2  # timings of a length before its price is taken for known
EVERY = 4  # of so many rounds one may try a length whose price is not known
HOPE = 1.25  # a length is tried if it were the best by so much more than it seems to make


class Rungs(NamedTuple):
    """The draft lengths on offer for a number of requests."""

    size: int  # requests that these rounds have room for: rounds of one size cost alike
    lengths: Sequence[int]  # rising from 0
    costs: Sequence[float]  # of a round of each length, as far as can be told beforehand


Ladder = Callable[[int], Rungs]
"""What is on offer, by the number of requests in a round."""


class LadderPolicy(PayingPolicy):
    """Asks for the captured length that makes the most tokens per second."""

    def __init__(self, *, has_coins: bool = False) -> None:
        super().__init__(has_coins=has_coins)
        self.ladder: Ladder | None = None  # of the executor at work
        self._last = -1  # the length that was chosen last, whose round may still be on its way
        self._last_round = (0, 0)  # requests and length of the last round that is over

    def learn(
        self,
        rows: Sequence[int],
        requests: Sequence[Request],
        drafted: Drafted,
        paths: Sequence[Sequence[int]],
        spent: Sequence[float] | None,
    ) -> None:
        known, num_rows, length = self.known, len(rows), drafted.height or 0
        if self._repeated:
            return
        for row, request, draft, path in zip(rows, requests, drafted.proposals, paths, strict=True):
            self._learn_row(row, request, draft, path)
        (last_rows, last_length), self._last_round = self._last_round, (num_rows, length)
        if spent is None or any(request.stats.rounds == 1 for request in requests):
            return  # a pass that reads a prompt says nothing about rounds to come
        rungs, seconds = self._rungs(num_rows), sum(spent)
        timings = known.whole.setdefault(rungs.size, Timings())
        caught_up = length > 0 and last_length == 0  # the drafter has read what it had missed
        if num_rows == last_rows and not caught_up:
            timings.learn(length, seconds)
        if length == 0:
            known.num_plain, known.last_plain = known.num_plain + 1, known.rounds
            return
        tokens = sum(len(path) + 1 for path in paths) / num_rows
        took = seconds / _cost(0, rungs, timings)
        known.pace.learn(tokens, took)
        if drafted.is_trial:
            known.debt = max(0.0, known.debt + took - tokens)

    def plain_seconds(self, num_rows: int) -> float | None:
        timings = self.known.whole.get(self._rungs(num_rows).size)
        if timings is None or timings.counts.get(0, 0) < NUM_TIMED:
            return None
        return exp(timings.logs[0])

    def price(self, num_rows: int) -> Price | None:
        timings = self.known.whole.get(self._rungs(num_rows).size)
        lengths = [] if timings is None else [length for length in timings.logs if length > 0]
        plain = self.plain_seconds(num_rows)
        if timings is None or plain is None or not lengths:
            return None
        length = min(lengths, key=lambda length: abs(length - 3))
        return Price(length, exp(timings.logs[length]) / plain, self._speed())

    def _is_off(self, num_rows: int, is_timed: bool) -> bool:
        return False

    def _choice(self, requests: Sequence[Experience], limits: list[int], is_timed: bool) -> Choice:
        length, is_trial = self._length(requests, limits, is_timed)
        self._last = length
        return Choice([min(length, limit) for limit in limits], is_trial=is_trial)

    def _length(
        self, requests: Sequence[Experience], limits: list[int], is_timed: bool
    ) -> tuple[int, bool]:
        """The length of the next round, and whether it is one that does not seem to pay."""
        known, rungs = self.known, self._rungs(len(limits))
        if len(rungs.lengths) == 1 or not any(limits):
            return 0, False
        timings = known.whole.setdefault(rungs.size, Timings())
        survivals = [self._survivals(*pair) for pair in zip(requests, limits, strict=True)]
        rates = {
            length: (len(limits) + sum(sum(row[:length]) for row in survivals))
            / _cost(length, rungs, timings)
            for length in rungs.lengths
        }
        best = max(rates, key=rates.__getitem__)
        if is_timed and known.rounds % EVERY == 0:
            for length, rate in rates.items():
                num_timed = timings.counts.get(length, 0) + (length == self._last)
                if num_timed < NUM_TRIES and (length == 0 or HOPE * rate >= rates[best]):
                    return length, rate < rates[0]
        if best > 0:
            is_plain_due = known.rounds - known.last_plain > LONGEST_WAIT and self._last != 0
            return (0 if is_plain_due else best), False
        return (rungs.lengths[1], True) if self._may_lose(is_timed) else (0, False)

    def _rungs(self, num_rows: int) -> Rungs:
        assert self.ladder is not None, "an engine at work has set it"
        return self.ladder(num_rows)


def _cost(length: int, rungs: Rungs, timings: Timings) -> float:
    """What a round of this length takes: as it was timed, or in proportion to the nearest length
    that was."""
    if length in timings.logs:
        return exp(timings.logs[length])
    costs = dict(zip(rungs.lengths, rungs.costs, strict=True))
    timed = [other for other in timings.logs if other in costs]
    if not timed:
        return costs[length]
    nearest = min(timed, key=lambda other: abs(other - length))
    return exp(timings.logs[nearest]) * costs[length] / costs[nearest]
