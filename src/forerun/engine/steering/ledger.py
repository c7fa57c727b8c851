"""Records what past rounds have shown: prices, gains, and what trials have cost.

Costs are counted in plain rounds: a plain round has no draft and makes one token in each row.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from forerun.drafters.base import Asked
from forerun.engine.steering.measurements import NUM_TIMED, OWN_FADE, Ratio, Seconds

ENOUGH = 32  # observations of a request that count as much as what all requests have shown; rounds
# without a guess after which there is one; tokens that a drafter reads without a check that it pays
BUDGET = 3.0  # plain rounds that trials may be expected to lose,
ALLOWANCE = 0.005  # and how many of them are regained in every round
NUM_DISTURBED = 8  # rounds after one with an ask that are not yet as if there had been none
WAIT = 512  # rounds between two runs of rounds without an ask, at most


@dataclass
class Earnings:
    """What all requests so far have shown about the costs and gains of one drafter."""

    asking: Seconds = field(default_factory=Seconds)  # by the tokens of all rows it was asked for:
    # of each the height of what came of it, plus one
    reading: Seconds = field(default_factory=Seconds)  # of one unread token: its size is 1
    size: Ratio = field(default_factory=Ratio)  # of an ask about one row
    worth: Ratio = field(default_factory=Ratio)  # tokens that it promises, less those of its slots
    shift: float = 0.0  # of the log-odds of stated chances
    num_verified: int = 0  # guesses that moved it

    def cost(self, size: float, num_unread: int, plain: float) -> float:
        """The cost of one call of the drafter, in plain rounds. It is capped until calls were timed
        a few times."""
        reading = self.reading.curve(1) * num_unread if self.reading.is_known(1) else 0.0
        rounds = (self.asking.curve(size) + reading) / plain
        is_known = sum(self.asking.counts.values()) >= NUM_TIMED
        return rounds if is_known else min(rounds, BUDGET / 2)

    @property
    def level(self) -> float:
        """The seconds that one more guess in a line takes."""
        if not self.asking.logs:
            return 0.0
        first, last = min(self.asking.logs), max(self.asking.logs)
        curve = self.asking.curve
        return (curve(last) - curve(first)) / (last - first) if last > first else curve(1) / last


@dataclass
class Own:
    """What a single request has shown about one drafter."""

    size: Ratio = field(default_factory=lambda: Ratio(OWN_FADE))
    worth: Ratio = field(default_factory=lambda: Ratio(OWN_FADE))
    rate: Ratio = field(default_factory=lambda: Ratio(OWN_FADE))
    num_read: int = 0  # tokens of its text when the drafter was last asked


@dataclass
class Ledger:
    """The costs and gains that the rounds of one kind of request have shown so far."""

    passes: Seconds = field(default_factory=Seconds)  # by tokens in it; with verify and commit
    plain: Seconds = field(default_factory=Seconds)  # of passes without drafts, by rows, where
    # nobody was asked for some rounds: a drafter may push weights out of the cache
    whole: dict[int, Seconds] = field(default_factory=dict)  # rounds that are captured as a whole,
    # by the requests they have room for: by draft length
    drafters: defaultdict[int, Earnings] = field(default_factory=lambda: defaultdict(Earnings))
    dearest: int | None = None  # of the drafters that were asked last
    rate: Ratio = field(default_factory=Ratio)  # of guesses without a stated chance, if reached
    drafted: Ratio = field(default_factory=Ratio)  # tokens per row over plain rounds, with drafts
    is_stated: bool = False  # drafters say how likely their guesses are
    rounds: int = 0
    num_plain: int = 0  # rounds without a guess that were timed
    num_scored: int = 0  # rounds with guesses that were timed
    num_silent: int = 0  # latest rounds in which somebody was asked and no guess was scored
    num_unasked: int = 0  # latest rounds in which nobody was asked
    last_run: int = 0  # the latest round at the end of a run of such
    debt: float = 0.0  # plain rounds that were expected to be lost and have not come back
    is_trying: bool = True  # until the budget is spent, and again when all has come back

    def plain_seconds(self, num_rows: int) -> float:
        """The seconds of a round without drafts, several rounds after the last one with drafts."""
        seconds, is_known = self.passes.curve(num_rows), self.plain.is_known(num_rows)
        return min(seconds, self.plain.usual(num_rows)) if is_known else seconds

    def learn_pass(self, num_rows: int, num_guesses: int, seconds: float) -> None:
        """Learn the seconds of a round, without the time that drafting took."""
        if self.num_unasked > NUM_DISTURBED and self.passes.is_known(num_rows):
            self.passes.drift(self.plain.learn(num_rows, seconds))
        else:
            self.plain.drift(self.passes.learn(num_rows + num_guesses, seconds))
        self.num_scored += num_guesses > 0
        self.num_plain += num_guesses == 0

    def learn_drafted(self, tokens: float, took: float, is_trial: bool) -> None:
        """Learn from a round with drafts.

        tokens: per row. took: its cost in plain rounds. is_trial: whether a loss is added to the
        debt.
        """
        self.drafted.learn(tokens, took)
        self.debt += max(0.0, took - tokens) * is_trial

    def pay_back(self) -> None:
        """Reduce the debt at the beginning of a round, and decide whether trials are allowed
        again."""
        self.debt = max(0.0, self.debt - ALLOWANCE)
        self.is_trying = self.debt < BUDGET * self.is_trying or self.debt == 0

    @property
    def is_run_due(self) -> bool:
        """Whether it is time for several rounds without drafts in a row, timed for comparison."""
        return self.rounds - self.last_run > min(WAIT, max(ENOUGH, self.last_run))

    def end_run(self, num_rows: int, plain: float) -> None:
        """End a run of rounds without drafts once it is long enough. Drafters that take hardly any
        time do not slow down the rounds after them, so that the run can be shorter."""
        asks = [own.asking.curve(2 * num_rows) for own in self.drafters.values()]
        longest = max(asks, default=plain)
        is_disturbed = longest > ALLOWANCE * plain
        if self.num_unasked >= 2 * NUM_TIMED + NUM_DISTURBED * is_disturbed:
            self.last_run = self.rounds

    @property
    def pays(self) -> bool:
        """Whether rounds with drafts have been faster than those without."""
        return (self.speed or 0.0) > 1

    @property
    def speed(self) -> float | None:
        """How many times as fast rounds with drafts are as rounds without; None if too few were
        timed."""
        return self.drafted.within(1.0, 0.0) if self.drafted.below >= NUM_TIMED else None


def size_of(asks: dict[int, Asked]) -> int:
    """The size of one call of a drafter for several rows: for each row, the guesses made one after
    another, plus one for the last step, which found none."""
    return sum(ask.height + 1 for ask in asks.values())
