"""Estimates from past rounds: seconds by size, and shares of guesses that were kept.

Recent rounds count more, and single slow rounds (the machine was busy) count only up to a limit.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from math import exp, inf, log

NUM_TIMED = 3  # timings before a price is relied on
STEP = 0.06  # share of its difference by which a timing moves the prices of all sizes, as a slow
# minute slows all of them; its own size moves by a mean of the timings besides
MOST_SLOWER = 0.3  # logarithm by which one slow timing counts at most: it may have been interrupted
FADE = 0.5 ** (1 / 200)  # weight of an observation after the next one, over all requests
OWN_FADE = 0.5 ** (1 / 32)  # and within one request


@dataclass(frozen=True)
class Curve:
    """Seconds as a function of size: linear between known sizes, constant below them, proportional
    above."""

    points: tuple[tuple[int, float], ...] = ()  # sizes, seconds; both rise

    def __call__(self, size: float) -> float:
        if not self.points:
            return 0.0
        above = bisect_left(self.points, (size, -inf))
        if above == 0:
            return self.points[0][1]
        last, seconds = self.points[above - 1]
        slope = seconds / max(1, last)
        if above < len(self.points):
            other, more = self.points[above]
            slope = (more - seconds) / (other - last)
        elif above > 1:
            before, less = self.points[above - 2]
            slope = min(slope, (seconds - less) / (last - before))
        return seconds + slope * (size - last)


@dataclass
class Seconds:
    """Learns how long something takes, by its size.

    Other programs may have used the processor during a single timing. So at first the fastest
    timing of a size counts, and at most in proportion to smaller sizes; later a moving average of
    clipped timings.
    """

    logs: dict[int, float] = field(default_factory=dict)  # usual seconds of a size, as logarithm
    counts: dict[int, int] = field(default_factory=dict)
    _drawn: Curve | None = None

    @property
    def curve(self) -> Curve:
        """The estimated seconds for any size."""
        if self._drawn is None:
            self._drawn = Curve(tuple(self._points()))
        return self._drawn

    def learn(self, size: int, seconds: float) -> float:
        """Learn one timing. Returns by how much everything seems to have become slower, as the
        logarithm of a factor."""
        new, count = log(max(seconds, 1e-9)), self.counts.get(size, 0)
        self.counts[size] = count + 1
        if count < NUM_TIMED:
            self.logs[size], self._drawn = min(new, self.logs.get(size, new)), None
            return 0.0
        slower = min(new - self.logs[size], MOST_SLOWER)
        self.logs[size] += max(STEP / 4, 1 / (count + 1)) * slower
        self.drift(STEP * slower)
        return STEP * slower

    def drift(self, step: float) -> None:
        """Raise all estimates by a factor, given as its logarithm."""
        for size in self.logs:
            self.logs[size] += step
        self._drawn = None

    def is_known(self, size: int) -> bool:
        """Whether a size was timed often enough."""
        return self.counts.get(size, 0) >= NUM_TIMED

    def usual(self, size: int) -> float:
        """The estimate of a timed size by itself, even if larger sizes took less."""
        return exp(self.logs[size])

    def _points(self) -> list[tuple[int, float]]:
        most, level = inf, {}
        for size in sorted(self.logs, reverse=True):  # a larger size never takes less
            most = level[size] = min(most, exp(self.logs[size]))
        points: list[tuple[int, float]] = []
        for size, seconds in reversed(level.items()):
            if points and not self.is_known(size):
                last, less = points[-1]
                seconds = min(seconds, less * size / max(1, last))
            points.append((size, seconds))
        return points


@dataclass
class Ratio:
    """The ratio of two running sums in which recent observations count more."""

    fade: float = FADE
    above: float = 0.0
    below: float = 0.0

    def learn(self, above: float, below: float = 1.0) -> None:
        """Add one observation to both sums."""
        self.above = self.fade * self.above + above
        self.below = self.fade * self.below + below

    def within(self, belief: float, trust: float) -> float:
        """The ratio, pulled towards a prior `belief` that weighs as much as `trust`
        observations."""
        return (self.above + trust * belief) / (self.below + trust)
