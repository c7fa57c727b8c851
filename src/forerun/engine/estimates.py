"""How often guesses were kept in rounds that are over; the recent past counts more."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field

HALF_LIFE = 400  # verified slots after which an observation of all requests counts half
OWN_HALF_LIFE = 50  # and one of a single request
PACE_HALF_LIFE, OWN_PACE_HALF_LIFE = 200, 16  # rounds
LIKELY = (0.0, 0.03, 0.06, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.65, 0.8)  # bands of chances
TRUST_IN_DRAFTER = 4.0  # guesses after which what it says counts half


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
    """Tokens of the rounds with drafts, and what they took, with forgetting."""

    tokens: float = 0.0
    took: float = 0.0  # in rounds without drafts over the same texts
    rounds: float = 0.0
    half_life: float = PACE_HALF_LIFE

    def learn(self, tokens: float, took: float) -> None:
        fade = 0.5 ** (1 / self.half_life)
        self.tokens = self.tokens * fade + tokens
        self.took = self.took * fade + took
        self.rounds = self.rounds * fade + 1


@dataclass
class Experience:
    """What one request has made of its drafts."""

    acceptance: Acceptance = field(default_factory=lambda: Acceptance(OWN_HALF_LIFE))
    pace: Pace = field(default_factory=lambda: Pace(half_life=OWN_PACE_HALF_LIFE))
    num_read: int = 0  # tokens of its text when the drafter was last asked
    num_shown: int = 0  # tokens that the drafter was shown for the first time in this round


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

    def chance(self, value: float) -> float:
        """How often a guess is kept that is called so likely."""
        return self._rate(bisect(LIKELY, value) - 1)

    def least(self, worth: float) -> float:
        """What a guess must be called to be kept as often as `worth`."""
        bands = (low for band, low in enumerate(LIKELY) if self._rate(band) >= worth)
        return next(bands, LIKELY[-1])

    def _rate(self, band: int) -> float:
        """Drafters are modest, greedy ones above all: a law that puts half on its likeliest token
        is right more often than that.  So untested bands are believed to do better than called.
        """
        belief: float = TRUST_IN_DRAFTER * LIKELY[band] ** 0.5
        return (self.kept[band] + belief) / (self.seen[band] + TRUST_IN_DRAFTER)
