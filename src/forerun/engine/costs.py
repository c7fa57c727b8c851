"""What the parts of a round take, from the latest few of each: machines do other things too."""

from __future__ import annotations

from bisect import bisect, insort
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, log
from statistics import fmean, median

NUM_TIMINGS = 25  # the latest passes of one size: so many count
STEP = 0.1  # by which the machine's slowness follows a new pass
LEAK = 0.02  # by which it is forgotten: there is nothing to hold it by but that it passes
MOST_SLOWER = 0.3  # that one pass may count, as a logarithm
MEAN_STEP = 0.05  # by which a mean does
MOMENT_HALF_LIFE = 1000  # passes
MOMENT_TRUST = 3e6  # in a slope of nothing: a thousand keys more or less, three times


def usual(timings: Sequence[float]) -> float:
    """The mean without the fastest and the slowest eighth, or one of each.

    Interruptions are part of what things take, and the longer they take the more of them there are,
    so a median would flatter those; but one that lasts for seconds says nothing.
    """
    cut = max(1, len(timings) // 8) if len(timings) > 2 else 0
    return fmean(sorted(timings)[cut : len(timings) - cut])


@dataclass
class Recent:
    """What the latest few timings come to, found when one is added: it is read more often."""

    middle: float = 0.0
    latest: deque[float] = field(default_factory=lambda: deque(maxlen=NUM_TIMINGS))

    def learn(self, seconds: float) -> None:
        self.latest.append(seconds)
        self.middle = usual(self.latest)

    def restate(self, latest: Sequence[float]) -> None:
        self.latest = deque(latest, maxlen=NUM_TIMINGS)
        self.middle = usual(self.latest)


@dataclass
class Clock:
    """Seconds of something by its size, from the latest few of each size.

    What is larger does not take less: where it seems to, the smaller was timed at a bad moment.
    """

    timings: dict[int, Recent] = field(default_factory=dict)
    sizes: list[int] = field(default_factory=list)  # those timed, in order
    levels: list[float] = field(default_factory=list)  # what each of them takes

    def learn(self, size: int, seconds: float) -> None:
        self._of(size).learn(seconds)
        self._level()

    def restate(self, latest: Mapping[int, Sequence[float]]) -> None:
        """The latest few of each size are other than they seemed."""
        for size, seconds in latest.items():
            self._of(size).restate(seconds)
        self._level()

    def steady(self, least: int) -> dict[int, float]:
        """The sizes that were timed so often, and what they take."""
        pairs = zip(self.sizes, self.levels, strict=True)
        return {size: took for size, took in pairs if len(self.timings[size].latest) >= least}

    def __call__(self, wanted: int) -> float:
        """What is usual where this size was timed; else a line through its neighbours, level below
        the smallest and as steep as the last known stretch, at most in proportion, above."""
        place = bisect(self.sizes, wanted)
        if place == 0:
            return self.levels[0]
        size, seconds = self.sizes[place - 1], self.levels[place - 1]
        rest = wanted - size
        if rest == 0:
            return seconds
        if place < len(self.sizes):
            return seconds + (self.levels[place] - seconds) * rest / (self.sizes[place] - size)
        slope = seconds / max(1, size)
        if place > 1:
            steepness = (seconds - self.levels[place - 2]) / (size - self.sizes[place - 2])
            slope = min(slope, steepness)
        return seconds + slope * rest

    def _of(self, size: int) -> Recent:
        if size not in self.timings:
            self.timings[size] = Recent()
            insort(self.sizes, size)
        return self.timings[size]

    def _level(self) -> None:
        most, levels = float("inf"), []
        for size in reversed(self.sizes):
            most = min(most, self.timings[size].middle)
            levels.append(most)
        self.levels = levels[::-1]


@dataclass
class Passes:
    """Seconds of the target's passes by their size, for texts as long as those at hand.

    Every row's keys are read, and every token meets them, so a pass over long texts takes longer by
    `per_key` for each; how long that is, passes of one size over different texts tell.  And there
    are minutes in which a machine does everything more slowly: what was timed in one is put down
    as it would have been in another, or sizes could not be compared that are not tried equally
    often.
    """

    short: Clock = field(default_factory=Clock)  # by size, over texts of no length
    per_key: float = 0.0
    slowness: float = 1.0  # of the machine at present
    context: float = 0.0  # mean length of the texts at hand
    num_rows: int = 1
    timed: dict[int, deque[tuple[float, float]]] = field(default_factory=dict)
    """Keys and seconds of the latest passes, by size."""
    means: dict[int, tuple[float, float]] = field(default_factory=dict)  # of both, by size
    moments: tuple[float, float] = (0.0, 0.0)  # of keys with keys and with seconds, about these

    def __call__(self, size: int) -> float:
        return self.short(size) + self.per_key * self._keys(size)

    def steady(self, least: int) -> dict[int, float]:
        """Those of the sizes that were timed so often."""
        found = self.short.steady(least)
        return {size: each + self.per_key * self._keys(size) for size, each in found.items()}

    def learn(self, size: int, seconds: float) -> None:
        keys = self._keys(size)
        expected = self.slowness * self(size) if size in self.timed else 0.0
        if expected > 0 and seconds > 0:
            slower = max(-MOST_SLOWER, min(MOST_SLOWER, log(seconds / expected)))
            self.slowness = exp((1 - LEAK) * log(self.slowness) + STEP * slower)
        own = self.timed.setdefault(size, deque(maxlen=NUM_TIMINGS))
        own.append((keys, seconds / self.slowness))
        found = self._per_key(size, keys, seconds)
        if abs(found - self.per_key) > 0.05 * self.per_key:
            self.per_key = found
            self.short.restate({each: self._without_keys(own) for each, own in self.timed.items()})
        else:
            self.short.learn(size, *self._without_keys([own[-1]]))

    def _without_keys(self, timed: Iterable[tuple[float, float]]) -> list[float]:
        """What passes would have taken over texts of no length: some part of it in any case."""
        return [max(took / 4, took - self.per_key * keys) for keys, took in timed]

    def _per_key(self, size: int, keys: float, seconds: float) -> float:
        """The slope of seconds over keys within sizes, one more pass being known."""
        mean_keys, mean_seconds = self.means.setdefault(size, (keys, seconds))
        # One pass that was interrupted must not count like a hundred that were not.
        further, longer = keys - mean_keys, min(seconds - mean_seconds, mean_seconds)
        self.means[size] = mean_keys + MEAN_STEP * further, mean_seconds + MEAN_STEP * longer
        square, product = (0.5 ** (1 / MOMENT_HALF_LIFE) * each for each in self.moments)
        self.moments = square + further**2, product + further * longer
        return max(0.0, self.moments[1] / (self.moments[0] + MOMENT_TRUST))

    def _keys(self, size: int) -> float:
        """That the rows read and the tokens meet."""
        return self.context * (size + self.num_rows)


@dataclass
class Costs:
    """Seconds of a round, part by part, of a machine that is as fast as when it was first timed."""

    score: Passes = field(default_factory=Passes)  # by tokens in the pass
    draft: Clock = field(default_factory=Clock)  # by the longest draft that came of it
    others: Recent = field(default_factory=Recent)  # verifying and committing
    reading: Recent = field(default_factory=Recent)  # one token that the drafter has not seen yet

    def round(self, num_tokens: int, depth: int | None = None) -> float:
        """Of a round whose longest draft is `depth`; None: nobody is asked."""
        draft = 0.0 if depth is None else self.draft(depth)
        return self.score(num_tokens) + draft + self.others.middle

    @property
    def asking(self) -> float | None:
        """Of a drafter that comes up with nothing, if that has happened."""
        return self.draft(0) if 0 in self.draft.timings else None

    @property
    def step(self) -> float:
        """Of one more guess that the drafter makes."""
        begin = self.asking or 0.0
        steps = [(self.draft(size) - begin) / size for size in self.draft.sizes if size]
        return max(0.0, median(steps or [0.0]))

    def slot(self, num_rows: int) -> float:
        """Of one more guess in the pass of so many rows."""
        plain = self.score(num_rows)
        larger = [size for size in self.score.short.sizes if size > num_rows]
        slopes = [(self.score(size) - plain) / (size - num_rows) for size in larger or [2]]
        return max(0.0, median(slopes))

    def learn_reading(self, num_shown: int, depth: int, seconds: float) -> float:
        """A draft took so long in which the drafter read so much: what of it was reading."""
        if not num_shown or not self.draft.sizes:
            return 0.0
        extra = max(0.0, seconds / self.score.slowness - self.draft(depth))
        self.reading.learn(extra / num_shown)
        return extra
