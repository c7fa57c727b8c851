"""How far to draft where rounds come in a few lengths, the same for all requests of a round.

A round that is captured as a whole costs what its length costs, however many of its slots are used.
So its price is a curve with steps, the time from one result to the next by length, and there is one
length to choose: the one that makes the most tokens per second.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from forerun.engine.proposal import Drafted
from forerun.engine.request import Request
from forerun.engine.steering.measurements import NUM_TIMED, Seconds
from forerun.engine.steering.policy import BUDGET, TRUST, Choice, PayingPolicy
from forerun.engine.steering.why_few import Price

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
        ledger, num_rows, length = self.ledger, len(rows), drafted.height or 0
        if self._repeated:
            return
        for row, draft, path in zip(rows, drafted.proposals, paths, strict=True):
            self._learn_row(row, draft, path)
        (last_rows, last_length), self._last_round = self._last_round, (num_rows, length)
        if spent is None or any(request.stats.rounds == 1 for request in requests):
            return  # a pass that reads a prompt says nothing about rounds to come
        seconds = self._seconds(num_rows)
        caught_up = length > 0 and last_length == 0  # the drafter has read what it had missed
        if num_rows == last_rows and not caught_up:
            seconds.learn(length, sum(spent))
        if length == 0:
            ledger.last_run = ledger.rounds
            return
        tokens = 1 + sum(map(len, paths)) / num_rows
        took = sum(spent) / _cost(0, self._rungs(num_rows), seconds)
        ledger.drafted.learn(tokens, took)
        if drafted.is_trial:
            ledger.debt += max(0.0, took - tokens)

    def plain_seconds(self, num_rows: int) -> float | None:
        seconds = self._seconds(num_rows)
        return seconds.usual(0) if seconds.is_known(0) else None

    def price(self, num_rows: int) -> Price | None:
        seconds, plain = self._seconds(num_rows), self.plain_seconds(num_rows)
        lengths = [length for length in seconds.logs if length > 0]
        if plain is None or not lengths:
            return None
        length = min(lengths, key=lambda length: abs(length - NUM_TIMED))
        return Price(length, seconds.usual(length) / plain, self._speed())

    def _choice(
        self,
        rows: Sequence[int],
        requests: Sequence[Request],
        rooms: Sequence[int],
        most: Sequence[int],
        is_timed: bool,
    ) -> Choice:
        self._last, is_trial = self._length(rows, most, is_timed)
        return Choice([min(self._last, limit) for limit in most], is_trial=is_trial)

    def _length(self, rows: Sequence[int], most: Sequence[int], is_timed: bool) -> tuple[int, bool]:
        """The length of the next round, and whether it is one that does not seem to pay."""
        ledger, rungs, seconds = self.ledger, self._rungs(len(rows)), self._seconds(len(rows))
        if len(rungs.lengths) == 1:
            return 0, False
        survivals = [self._survivals(*pair) for pair in zip(rows, most, strict=True)]
        rates = {
            length: (len(rows) + sum(sum(row[:length]) for row in survivals))
            / _cost(length, rungs, seconds)
            for length in rungs.lengths
        }
        best = max(rates, key=rates.__getitem__)
        if is_timed and ledger.rounds % EVERY == 0:
            for length, rate in rates.items():
                num_timed = seconds.counts.get(length, 0) + (length == self._last)
                if num_timed < NUM_TIMED and (length == 0 or HOPE * rate >= rates[best]):
                    return length, rate < rates[0]
        if best > 0:
            is_plain_due = ledger.rounds - ledger.last_run > TRUST and self._last != 0
            return (0 if is_plain_due else best), False
        if is_timed and ledger.debt < BUDGET:
            return rungs.lengths[1], True
        return 0, False

    def _seconds(self, num_rows: int) -> Seconds:
        """Of rounds by their length, where they have room for so many requests."""
        return self.ledger.whole.setdefault(self._rungs(num_rows).size, Seconds())

    def _rungs(self, num_rows: int) -> Rungs:
        assert self.ladder is not None, "an engine at work has set it"
        return self.ladder(num_rows)


def _cost(length: int, rungs: Rungs, seconds: Seconds) -> float:
    """What a round of this length takes: as it was timed, or in proportion to the nearest length
    that was."""
    if length in seconds.logs:
        return seconds.usual(length)
    costs = dict(zip(rungs.lengths, rungs.costs, strict=True))
    timed = [other for other in seconds.logs if other in costs]
    if not timed:
        return costs[length]
    nearest = min(timed, key=lambda other: abs(other - length))
    return seconds.usual(nearest) * costs[length] / costs[nearest]
