"""Simulates known faults of speculation beside a text, to predict the law that the next token would
have.

One fault: drafts are drawn with sampling options but verified as if drawn without. The other is in
block verification, which tests the K guesses of a round from the last to the first, each with one
or two coins, and ends at the first success. After a short acceptance the coins of the later slots
are known to have failed. If coins are addressed by position, the next round uses the same coins
again, and accepts its guesses less often than it should. Where drafts can be guessed from outside,
the text shows which coins have failed, and so how much less often.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from operator import mul

import numpy as np

from forerun.audit.bins import Bins, Key
from forerun.audit.features import copied, run_of
from forerun.base.arrays import HostArray

Drafts = Callable[[Bins, Sequence[Key], int], Sequence[Key | None]]
"""A function that gives the tokens which might be drafted at a place, from its law, the text and
the place: one token or more."""
Box = tuple[float, float]
"""The thresholds of a slot's two coins, both of which must fall below theirs. If there is only one
coin, the second threshold is 1."""

USUAL = 0.5
"""The initial value of the running mean of guesses' probabilities, which replaces unknown ones."""


@dataclass
class CoinFilter:
    """Follows one text token by token: call `chance` before each token, then `see`.

    num_coins: per slot, 1 as in vLLM 0.32 or 2 as in forerun's `block`.
    length: the number of guesses in a round.
    """

    num_coins: int
    length: int = 4
    _failed: defaultdict[int, list[Box]] = field(default_factory=lambda: defaultdict(list))
    _place: int = 0
    _accepted: list[float] = field(default_factory=list)  # chances of this round's accepted guesses
    _guess: float | None = None  # the chance of the guess at this place
    _sum: float = USUAL
    _count: int = 1

    @property
    def begins_round(self) -> bool:
        """Whether the next token is probably the first of a round."""
        return not self._accepted

    def start(self) -> None:
        """Begin a new text."""
        self._failed.clear()
        self._accepted.clear()
        self._place, self._guess = 0, None

    def chance(self, guess: float | None) -> float | None:
        """The probability that the guess comes under this fault, if the target's is `guess`.

        None if there is no guess, or it is not tested: after a round whose guesses were all
        accepted.
        """
        self._guess = guess if len(self._accepted) < self.length else None
        if self._guess is None:
            return None
        boxes, kept = self._boxes(), len(self._accepted)
        first = self._place - kept
        failing = [1 - self._success(first + slot, box) for slot, box in enumerate(boxes)]
        further = list(accumulate(reversed(failing), mul))[::-1]  # all from a slot on fail
        reached = 1 - further[kept - 1] if kept else 1.0
        return min(max((1 - further[kept]) / reached, 0.0), 1.0) if reached > 0 else None

    def see(self, is_guess: bool) -> None:
        """Record whether the token at this place was the guess."""
        if self._guess is not None:
            if not is_guess:
                kept = len(self._accepted)
                for slot, box in enumerate(self._boxes()[kept + 1 :], start=1):
                    self._failed[self._place + slot].append(box)
            self._sum += self._guess
            self._count += 1
        if self._guess is not None and is_guess:
            self._accepted.append(self._guess)
        else:
            self._accepted.clear()
        self._place += 1

    def _boxes(self) -> list[Box]:
        """The thresholds that the coins of each slot are compared with.

        For guesses that are certain, pi_i is the product of their probabilities under the target
        and h_i = (pi_i - pi_(i+1)) / (1 - pi_(i+1)), the last one pi_K.
        """
        known = [*self._accepted, *([] if self._guess is None else [self._guess])]
        usual = self._sum / self._count
        chances = [*known, *[usual] * (self.length - len(known))]
        pi = list(accumulate(chances, mul))
        shares = [(a - b) / (1 - b) if b < 1 else 1.0 for a, b in pairwise(pi)]
        tests = [*shares, pi[-1]]
        if self.num_coins == 1:
            return [(test, 1.0) for test in tests]
        return [(a, test / a if a > 0 else 0.0) for a, test in zip(pi, tests, strict=True)]

    def _success(self, place: int, box: Box) -> float:
        """The probability that a place's coins fall into a box, given the boxes that they
        missed."""
        failed = self._failed[place]
        left = 1 - _area(failed)
        inside = _area([(min(a, box[0]), min(b, box[1])) for a, b in failed])
        return (box[0] * box[1] - inside) / left if left > 1e-12 else 0.0


def _area(boxes: Sequence[Box]) -> float:
    """The area of the union of boxes that all have a corner at the origin."""
    total = highest = 0.0
    for width, height in sorted(boxes, reverse=True):
        total += width * max(0.0, height - highest)
        highest = max(highest, height)
    return total


def copies(law: Bins, text: Sequence[Key], place: int) -> Sequence[Key | None]:
    """The guess of a drafter that copies earlier text and searches again for every token."""
    return [copied(text, place)]


def runs(law: Bins, text: Sequence[Key], place: int) -> Sequence[Key | None]:
    """The guesses of a drafter that copies several tokens at once."""
    return run_of(text, place, CoinFilter.length) or [None]


def likeliest(law: Bins, text: Sequence[Key], place: int) -> Sequence[Key | None]:
    """The guess of a good draft model: the target's likeliest token."""
    return [law.keys[0]]


def second(law: Bins, text: Sequence[Key], place: int) -> Sequence[Key | None]:
    """The guess of a poor draft model: the target's second-likeliest token."""
    return [law.keys[min(1, len(law.keys) - 1)]]


def misjudged(law: Bins, plain: Bins) -> HostArray:
    """The law (B,) of a server that draws drafts with options but verifies them as if drawn
    without, assuming a perfect drafter. This is the commonest bug of servers."""
    stated = np.maximum(plain.spread_over(law.keys), 1e-12)
    kept = law.chances * np.minimum(1.0, law.chances / stated)
    owed = np.maximum(law.chances - stated, 0.0)
    return kept + (1 - kept.sum()) * owed / owed.sum() if owed.any() else law.chances


@dataclass
class Mechanism:
    """The fault of coins addressed by position, with one assumption about what is drafted."""

    drafts: Drafts
    coins: CoinFilter
    _ahead: list[Key | None] = field(default_factory=list)  # of the draft, from the next place on

    def law(self, law: Bins, text: Sequence[Key], place: int) -> HostArray:
        """The law (B,) of the token at a place under this fault, given text[:place]."""
        if self.coins.begins_round or not self._ahead:
            self._ahead = list(self.drafts(law, text, place))
        guess = self._ahead[0] if self._ahead[0] in law.keys[:-1] else None
        known = None if guess is None else law.chance(guess)
        chance = self.coins.chance(known)
        if guess is None or known is None or chance is None or known >= 1:
            return law.chances
        moved = law.chances * ((1 - chance) / (1 - known))
        moved[law.index(guess)] = chance
        return np.asarray(moved)

    def see(self, token: Key) -> None:
        """Record the token that came at that place."""
        self.coins.see(token == self._ahead.pop(0))


def _known() -> list[Mechanism]:
    """One mechanism for every assumption about drafts, with one coin per slot and with two."""
    kinds: tuple[Drafts, ...] = (copies, runs, likeliest, second)
    return [Mechanism(drafts, CoinFilter(coins)) for drafts in kinds for coins in (1, 2)]


@dataclass
class Mechanisms:
    """All simulated mechanisms, following one text at a time."""

    known: list[Mechanism] = field(default_factory=_known)
    _is_lost: bool = False

    def __len__(self) -> int:
        """The number of simulated laws."""
        return len(self.known)

    def start(self) -> None:
        """Begin a new text."""
        self._is_lost = False
        for mechanism in self.known:
            mechanism.coins.start()

    def lose_track(self) -> None:
        """Predict nothing until the next text begins, because the law of a place is unknown."""
        self._is_lost = True

    def laws(self, law: Bins, text: Sequence[Key], place: int) -> list[HostArray]:
        """The law (B,) of each mechanism at a place, given text[:place]."""
        if self._is_lost:
            return [law.chances] * len(self)
        return [mechanism.law(law, text, place) for mechanism in self.known]

    def see(self, token: Key) -> None:
        """Record the token that came at that place."""
        if not self._is_lost:
            for mechanism in self.known:
                mechanism.see(token)
