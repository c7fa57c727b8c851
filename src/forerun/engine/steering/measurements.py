"""What was learned of rounds that are over: seconds by size, acceptance by slot, stated values.

The recent past counts more, and a machine that does other things too must not mislead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp, inf, log

from forerun.drafters.base import Prices
from forerun.drafters.calibration import calibrated, corrected
from forerun.engine.steering.curve import Curve

LONGEST = 8  # tokens in the longest draft that is considered
FADE, OWN_FADE = 0.5 ** (1 / 200), 0.5 ** (1 / 32)  # what a draft counts one draft later, and
# within one request: half after 200, and after 32
NUM_TIMED = 3  # timings before a price is relied on
NUM_DISTURBED = 8  # rounds after one with an ask that are not yet as if there had been none
NUM_UNDISTURBED = 14  # rounds without an ask that are timed together, those included
NUM_STALE = 4  # timings after which a curve is drawn anew; one timing hardly changes it
SHARED_STEP = 0.064  # share of its difference by which a timing moves the prices of all sizes: a
# slow minute slows all of them
OWN_STEP = 0.016  # by which it moves that of its own size besides, once many timings count
MOST_SLOWER = 0.3  # logarithm by which one slow round counts at most: it may have been interrupted
GROWTH = 0.58  # power of its tokens that the seconds of a pass follow at most, until believed
FIRST_SPEED = 1.03  # of rounds with drafts against those without, before anything was seen
FIRST_TRUST = 256  # plain rounds that this counts like
SPEED_TRUST = 48  # plain rounds that the speed of all requests counts like for those at hand
LONG_FADE = 0.5 ** (1 / 2000)  # what a round counts one round later for the speed of all requests


@dataclass
class Timings:
    """Seconds of something by its size.

    In a single timing others may have had the processor.  A size is believed to take what it took
    if NUM_TIMED timings, of any size, took half of that or more.
    """

    growth: float | None = None  # power of the size that seconds follow at most, until believed
    logs: dict[int, float] = field(default_factory=dict)  # usual seconds of a size, as logarithm
    counts: dict[int, int] = field(default_factory=dict)
    curve: Curve = field(default_factory=Curve)
    num_new: int = 0  # timings since the curve was drawn
    believed: float = -inf  # logarithm of the most seconds that are, as of the last curve

    def learn(self, size: int, seconds: float) -> float:
        """At first the fastest timing counts, then a moving average of clipped ones.

        Gives the logarithm by which everything has become slower, as this timing tells.
        """
        new, count = log(max(seconds, 1e-9)), self.counts.get(size, 0)
        self.counts[size] = count + 1
        if count < NUM_TIMED:
            self.logs[size] = min(new, self.logs.get(size, new))
            self._draw()
            return 0.0
        slower = min(new - self.logs[size], MOST_SLOWER)
        self.logs[size] += max(OWN_STEP, 1 / (count + 1)) * slower
        self.drift(SHARED_STEP * slower)
        return SHARED_STEP * slower

    def drift(self, step: float) -> None:
        """Everything has become slower by so much, as a logarithm."""
        for size in self.logs:
            self.logs[size] += step
        self.num_new += 1
        if self.num_new >= NUM_STALE:
            self._draw()

    def is_believed(self, size: int) -> bool:
        """Whether a size that was timed takes as long as it seems to."""
        return self.logs[size] <= self.believed

    def _draw(self) -> None:
        self.num_new, self.believed = 0, self._most_believed()
        seconds = {size: exp(self.logs[size]) for size in sorted(self.logs)}
        if self.growth is not None:
            least = inf  # seconds over `grown`, of smaller sizes that are believed
            for size in seconds:
                grown = size**self.growth
                if self.is_believed(size):
                    least = min(least, seconds[size] / grown)
                else:
                    seconds[size] = min(seconds[size], least * grown)
        most = inf
        points: list[tuple[int, float]] = []
        for size in reversed(seconds):  # what is larger does not take less
            most = min(most, seconds[size])
            points.append((size, most))
        self.curve = Curve(tuple(reversed(points)))

    def _most_believed(self) -> float:
        """The logarithm of twice the seconds that NUM_TIMED timings took or exceeded."""
        count = 0
        for size in sorted(self.logs, key=self.logs.__getitem__, reverse=True):
            count += self.counts[size]
            if count >= NUM_TIMED:
                return self.logs[size] + log(2)
        return -inf

    def __call__(self, size: int) -> float:
        return self.curve(size)

    def usual(self, size: int) -> float:
        """Seconds of a size that was timed, as they are: larger ones may take less, as of several
        drafters the quickest may have the longest guesses."""
        return exp(self.logs[size])


@dataclass
class Ratio:
    """One sum over another; the recent past counts more."""

    fade: float = FADE
    above: float = 0.0
    below: float = 0.0
    count: int = 0

    def learn(self, above: float, below: float) -> None:
        self.above = self.fade * self.above + above
        self.below = self.fade * self.below + below
        self.count += 1

    def forget(self) -> None:
        """Rely a little less on what was observed."""
        self.above, self.below = self.fade * self.above, self.fade * self.below

    def within(self, belief: float, trust: float) -> float:
        """The ratio, drawn towards a belief that weighs as much as `trust` observations."""
        return (self.above + trust * belief) / (self.below + trust)


def slots(fade: float) -> list[Ratio]:
    """Acceptance of each slot of a draft where it was reached."""
    return [Ratio(fade) for _ in range(LONGEST)]


@dataclass
class Experience:
    """What is known of one request."""

    acceptance: list[Ratio] = field(default_factory=lambda: slots(OWN_FADE))
    num_read: int = 0  # tokens of its text when the drafter was last asked
    num_shown: int = 0  # tokens that the drafter is shown for the first time in this round
    owed: float = 0.0  # plain rounds that reading these costs more than it is expected to save


@dataclass
class Knowledge:
    """What was learned about a target and a drafter."""

    passes: Timings = field(default_factory=lambda: Timings(GROWTH))  # by tokens in it; with
    # verify and commit
    undisturbed: Timings = field(default_factory=Timings)  # passes without drafts, by rows, where
    # the drafter has not been asked for some rounds: it may push weights out of the cache
    drafting: Timings = field(default_factory=Timings)  # by the longest draft that came of it
    reading: Timings = field(default_factory=Timings)  # of one unread token
    whole: dict[int, Timings] = field(default_factory=dict)  # rounds that are captured as a whole,
    # by the requests they have room for: by draft length
    acceptance: list[Ratio] = field(default_factory=lambda: slots(FADE))
    pace: Ratio = field(default_factory=Ratio)  # with drafts: tokens per row over plain rounds
    promised: Ratio = field(default_factory=Ratio)  # the same by what the drafter stated, lately
    promised_ever: Ratio = field(default_factory=lambda: Ratio(LONG_FADE))
    shift: float | None = None  # of the log-odds of stated values; None: none were stated
    rounds: int = 0
    num_plain: int = 0
    last_plain: int = 0  # the latest round without a draft
    num_unasked: int = 0  # latest rounds in which the drafter was not asked
    last_undisturbed: int = 0  # the latest round after a run of such
    num_silent: int = 0  # latest rounds in which the drafter was asked and no guess was scored
    debt: float = 0.0  # plain rounds that drafts have lost, less their allowance
    lost: float = 0.0  # the same by tokens that were kept, whatever the drafter stated
    is_resting: bool = False  # nothing is drafted until the debt is paid
    has_drafted: bool = False
    seeds: set[int] = field(default_factory=set)  # whose coins it has learned from

    def chance(self, value: float, sign: int = 1) -> float:
        """How often a guess of this stated value is kept; sign -1: the value of this chance."""
        return calibrated(value, sign * (self.shift or 0.0))

    def calibrate(self, values: Sequence[float], path: Sequence[int]) -> None:
        """Learn the shift from verified guesses; it starts above 0, as most values are too low."""
        self.shift = 0.7 if self.shift is None else self.shift
        for node, value in enumerate(values):
            self.shift = corrected(self.shift, value, node in path)

    @property
    def usual_speed(self) -> float:
        """Of rounds with drafts against those without, over all requests so far."""
        return self.promised_ever.within(FIRST_SPEED, FIRST_TRUST)

    @property
    def speed(self) -> float:
        """The same as can be expected of the requests at hand."""
        return self.promised.within(self.usual_speed, SPEED_TRUST)

    def start_afresh(self) -> None:
        """Draft again, with the speed of all requests to expect."""
        self.is_resting, self.promised = False, Ratio()

    def learn_pass(self, num_rows: int, num_drafted: int, seconds: float, was_asked: bool) -> None:
        """The seconds of a round without those of the drafter."""
        self.num_unasked = 0 if was_asked else self.num_unasked + 1
        if self.num_unasked >= NUM_UNDISTURBED:
            self.last_undisturbed = self.rounds
        if self.num_unasked > NUM_DISTURBED and self.passes.counts.get(num_rows, 0) >= NUM_TIMED:
            self.passes.drift(self.undisturbed.learn(num_rows, seconds))
        else:
            self.undisturbed.drift(self.passes.learn(num_rows + num_drafted, seconds))

    @property
    def num_runs(self) -> int:
        """How many runs without asks were timed; a long rest counts as several."""
        return sum(self.undisturbed.counts.values()) // (NUM_UNDISTURBED - NUM_DISTURBED)

    def is_price_certain(self, size: int, depth: int) -> bool:
        """Whether passes of this size and drafts of this depth take as long as they seem to."""
        return self.passes.is_believed(size) and self.drafting.is_believed(depth)

    def plain(self, num_rows: int) -> float:
        """Seconds of a round if nothing were drafted, nor had been of late."""
        seconds = self.passes(num_rows)
        if self.undisturbed.counts.get(num_rows, 0) <= NUM_TIMED:
            return seconds
        return min(seconds, self.undisturbed.usual(num_rows))

    def prices(self, num_rows: int) -> Prices:
        curve = self.passes.curve
        plain, added = self.plain(num_rows) / num_rows, curve.added(num_rows, LONGEST)
        return Prices(plain / max(1.0, self.speed), curve.slope(num_rows), added, plain)
