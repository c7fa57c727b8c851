"""How far to draft where rounds are captured for a few draft lengths, one length for all requests.

A captured round takes as long as its full length takes, however many of its slots are used. So the
policy times each length, and chooses the one that makes the most tokens per second.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from forerun.engine.proposal import Drafted
from forerun.engine.request import Request
from forerun.engine.steering.measurements import NUM_TIMED, Seconds
from forerun.engine.steering.policy import NEAR, Choice, PayingPolicy


class Rungs(NamedTuple):
    """The draft lengths available for a number of requests."""

    size: int  # requests that these rounds have room for: rounds of one size cost alike
    lengths: Sequence[int]  # rising from 0
    costs: Sequence[float]  # of a round of each length, as far as can be told beforehand

    def cost(self, length: int, seconds: Seconds) -> float:
        """The seconds of a round of this length: as timed, or scaled from the nearest length that
        was timed."""
        if length in seconds.logs:
            return seconds.usual(length)
        costs = dict(zip(self.lengths, self.costs, strict=True))
        timed = [other for other in seconds.logs if other in costs]
        if not timed:
            return costs[length]
        nearest = min(timed, key=lambda other: abs(other - length))
        return seconds.usual(nearest) * costs[length] / costs[nearest]


Ladder = Callable[[int], Rungs]
"""A function that gives the available draft lengths for the number of requests in a round."""


class LadderPolicy(PayingPolicy):
    """Chooses the captured length that makes the most tokens per second."""

    def __init__(self, *, has_coins: bool = False) -> None:
        super().__init__(has_coins=has_coins)
        self.ladder: Ladder | None = None  # of the executor at work
        self._last = -1  # the length that was chosen last, whose round may still be on its way
        # size and length of the last round that is over, -1 of one that read a prompt
        self._last_round = (0, 0)

    def plain_seconds(self, num_rows: int) -> float | None:
        seconds = self._seconds(num_rows)
        return seconds.usual(0) if seconds.is_known(0) else None

    def _timed(self, num_rows: int) -> tuple[Seconds, int, int]:
        return self._seconds(num_rows), 0, 1

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
        """The draft length of the next round, and whether that round is a trial: one expected to
        lose time."""
        ledger, rungs, seconds = self.ledger, self._rungs(len(rows)), self._seconds(len(rows))
        if len(rungs.lengths) == 1:
            return 0, False
        survivals = [self._survivals(*pair) for pair in zip(rows, most, strict=True)]
        rates = {
            length: (len(rows) + sum(sum(row[:length]) for row in survivals))
            / rungs.cost(length, seconds)
            for length in rungs.lengths
        }
        best = max(rates, key=rates.__getitem__)
        if is_timed and ledger.rounds % (1 + NUM_TIMED) == 0:  # lengths whose price is not known
            for length, rate in rates.items():
                num_timed = seconds.counts.get(length, 0) + (length == self._last)
                is_near, is_trial = rate >= NEAR * rates[best], rate < rates[0]
                may_pay = length == 0 or (is_near and (ledger.is_trying or not is_trial))
                if num_timed < NUM_TIMED and may_pay:
                    return length, is_trial
        if best > 0 and (is_timed or ledger.pays):
            return (0 if ledger.is_run_due and self._last != 0 else best), False
        is_trial = is_timed and ledger.is_trying
        return rungs.lengths[is_trial], is_trial

    def _learn_round(
        self,
        rows: Sequence[int],
        requests: Sequence[Request],
        drafted: Drafted,
        paths: Sequence[Sequence[int]],
        spent: Sequence[float] | None,
        reads: bool,
    ) -> None:
        ledger, num_rows, length = self.ledger, len(rows), drafted.height or 0
        size, (last_size, last_length) = self._rungs(num_rows).size, self._last_round
        is_new = any(request.stats.rounds == 1 for request in requests)
        if spent is None or reads or is_new:
            self._last_round = size, -1
            return  # a pass that reads a prompt says nothing about rounds to come
        self._last_round = size, length
        seconds = self._seconds(num_rows)
        # The drafter has read what it had missed while it was not asked.  What it misses while
        # prompts are read, which comes again and again, belongs to the price of drafts.
        caught_up = length > 0 and last_length == 0
        if size == last_size and not caught_up:  # requests may have come and gone in it
            seconds.learn(length, sum(spent))
        if length == 0:
            ledger.last_run = ledger.rounds
        else:
            tokens = 1 + sum(map(len, paths)) / num_rows
            took = sum(spent) / self._rungs(num_rows).cost(0, seconds)
            ledger.learn_drafted(tokens, took, drafted.is_trial)

    def _seconds(self, num_rows: int) -> Seconds:
        """The timings, by length, of rounds with room for this many requests."""
        return self.ledger.whole.setdefault(self._rungs(num_rows).size, Seconds())

    def _rungs(self, num_rows: int) -> Rungs:
        assert self.ladder is not None, "an engine at work has set it"
        return self.ladder(num_rows)
