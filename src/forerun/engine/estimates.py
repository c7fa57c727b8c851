"""What is learned from rounds that are over, each with forgetting: the recent past counts more."""

from __future__ import annotations

from bisect import bisect, insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

HALF_LIFE = 400  # verified slots after which an observation of all requests counts half
OWN_HALF_LIFE = 50  # and one of a single request
PACE_HALF_LIFE, OWN_PACE_HALF_LIFE = 200, 16  # rounds
LIKELY = (0.0, 0.03, 0.06, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.65, 0.8)  # bands of chances
TRUST_IN_DRAFTER = 4.0  # guesses after which what it says counts half
NUM_TIMINGS = 25  # the latest passes of one size, of which the median counts


@dataclass
class Acceptance:
    """How often each slot of a draft was accepted where it was reached, with forgetting."""

    half_life: float = HALF_LIFE
    accepted: list[float] = field(default_factory=list)
    reached: list[float] = field(default_factory=list)

    def learn(self, num_drafted: int, num_accepted: int) -> None:
        """One verified draft: slots up to the first refusal were reached."""
        num_reached = min(num_drafted, num_accepted + 1)
        missing = num_reached - len(self.reached)
        self.accepted += [0.0] * missing
        self.reached += [0.0] * missing
        fade = 0.5 ** (num_reached / self.half_life)
        for slot in range(len(self.reached)):
            self.accepted[slot] *= fade
            self.reached[slot] *= fade
        for slot in range(num_reached):
            self.reached[slot] += 1.0
            self.accepted[slot] += slot < num_accepted

    def rate(self, slot: int, belief: float, trust: float) -> float:
        """Acceptance of a slot, drawn towards a belief that weighs as much as `trust` slots."""
        if slot >= len(self.reached):
            return belief
        return (self.accepted[slot] + trust * belief) / (self.reached[slot] + trust)


@dataclass
class Pace:
    """Tokens and seconds of the rounds with drafts, with forgetting."""

    tokens: float = 0.0
    seconds: float = 0.0
    rounds: float = 0.0
    half_life: float = PACE_HALF_LIFE

    def learn(self, tokens: float, seconds: float) -> None:
        fade = 0.5 ** (1 / self.half_life)
        self.tokens = self.tokens * fade + tokens
        self.seconds = self.seconds * fade + seconds
        self.rounds = self.rounds * fade + 1


@dataclass
class Experience:
    """What one request has made of its drafts."""

    acceptance: Acceptance = field(default_factory=lambda: Acceptance(OWN_HALF_LIFE))
    pace: Pace = field(default_factory=lambda: Pace(half_life=OWN_PACE_HALF_LIFE))


@dataclass
class Calibration:
    """How often guesses are kept that a drafter calls so likely to be, with forgetting."""

    kept: list[float] = field(default_factory=lambda: [0.0] * len(LIKELY))
    seen: list[float] = field(default_factory=lambda: [0.0] * len(LIKELY))

    def learn(self, values: Sequence[float], path: Sequence[int]) -> None:
        """The guesses of one draft by what they were called, and the ones that were kept."""
        fade = 0.5 ** (len(values) / HALF_LIFE)
        self.kept = [each * fade for each in self.kept]
        self.seen = [each * fade for each in self.seen]
        for node, value in enumerate(values):
            band = bisect(LIKELY, value) - 1
            self.seen[band] += 1
            self.kept[band] += node in path

    def least(self, worth: float) -> float:
        """What a guess must be called to be kept as often as `worth`.

        Drafters are modest, greedy ones above all: a law that puts half on its likeliest token
        is right more often than that.  So untested bands are believed to do better than called.
        """
        for low, kept, seen in zip(LIKELY, self.kept, self.seen, strict=True):
            if (kept + TRUST_IN_DRAFTER * low**0.5) / (seen + TRUST_IN_DRAFTER) >= worth:
                return low
        return LIKELY[-1]


@dataclass
class Recent:
    """The median of the latest few timings, found when one is added: it is read more often."""

    middle: float = 0.0
    latest: deque[float] = field(default_factory=lambda: deque(maxlen=NUM_TIMINGS))

    def learn(self, seconds: float) -> None:
        self.latest.append(seconds)
        self.middle = median(self.latest)


@dataclass
class Clock:
    """Seconds of something by its size, from the latest few of each size."""

    timings: dict[int, Recent] = field(default_factory=dict)
    sizes: list[int] = field(default_factory=list)  # those timed, in order

    def learn(self, size: int, seconds: float) -> None:
        if size not in self.timings:
            self.timings[size] = Recent()
            insort(self.sizes, size)
        self.timings[size].learn(seconds)

    def __call__(self, wanted: int) -> float:
        """The median where this size was timed; else a line through its neighbours, level below
        the smallest and as steep as the last known stretch, at most in proportion, above."""
        if wanted in self.timings:
            return self.timings[wanted].middle
        place = bisect(self.sizes, wanted)
        if place == 0:
            return self.timings[self.sizes[0]].middle
        size = self.sizes[place - 1]
        seconds, rest = self.timings[size].middle, wanted - size
        if place < len(self.sizes):
            other = self.sizes[place]
            return seconds + (self.timings[other].middle - seconds) * rest / (other - size)
        slope = seconds / max(1, size)
        if place > 1:
            before = self.sizes[place - 2]
            steepness = (seconds - self.timings[before].middle) / (size - before)
            slope = min(slope, max(0.0, steepness))
        return seconds + slope * rest
