"""Faults whose mechanism is known, simulated beside a text: what the next token would be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from forerun.audit.bins import Bins, Key
from forerun.audit.coins import CoinFilter
from forerun.audit.features import copied, run_of
from forerun.base.arrays import HostArray

Drafts = Callable[[Bins, Sequence[Key], int], Sequence[Key | None]]
"""What might be drafted at a place: given its law and the text up to there, one token or more."""


def copies(law: Bins, text: Sequence[Key], place: int) -> Sequence[Key | None]:
    """A copy, looked up again for every token."""
    return [copied(text, place)]


def runs(law: Bins, text: Sequence[Key], place: int) -> Sequence[Key | None]:
    """A copy of several tokens at once."""
    return run_of(text, place, CoinFilter.length) or [None]


def likeliest(law: Bins, text: Sequence[Key], place: int) -> Sequence[Key | None]:
    return [law.keys[0]]


def second(law: Bins, text: Sequence[Key], place: int) -> Sequence[Key | None]:
    return [law.keys[min(1, len(law.keys) - 1)]]


def misjudged(law: Bins, plain: Bins) -> HostArray:
    """The law (B,) of drafts that are drawn under options and verified as if drawn without, where
    the drafter is as good as the model: the commonest bug of servers."""
    stated = np.maximum(plain.spread_over(law.keys), 1e-12)
    kept = law.chances * np.minimum(1.0, law.chances / stated)
    owed = np.maximum(law.chances - stated, 0.0)
    return kept + (1 - kept.sum()) * owed / owed.sum() if owed.any() else law.chances


@dataclass
class Mechanism:
    """Coins by position, with one idea of what is drafted."""

    drafts: Drafts
    coins: CoinFilter
    _ahead: list[Key | None] = field(default_factory=list)  # of the draft, from the next place on

    def law(self, law: Bins, text: Sequence[Key], place: int) -> HostArray:
        """The law (B,) of the token at a place; text[:place] is known."""
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
        """The token of that place."""
        self.coins.see(token == self._ahead.pop(0))


def _known() -> list[Mechanism]:
    kinds: tuple[Drafts, ...] = (copies, runs, likeliest, second)
    return [Mechanism(drafts, CoinFilter(coins)) for drafts in kinds for coins in (1, 2)]


@dataclass
class Mechanisms:
    """All of them, on one text at a time."""

    known: list[Mechanism] = field(default_factory=_known)
    _is_lost: bool = False

    def __len__(self) -> int:
        return len(self.known)

    def start(self) -> None:
        """A text begins."""
        self._is_lost = False
        for mechanism in self.known:
            mechanism.coins.start()

    def lose_track(self) -> None:
        """The law of a place is not known: nothing is said until the next text begins."""
        self._is_lost = True

    def laws(self, law: Bins, text: Sequence[Key], place: int) -> list[HostArray]:
        """The law (B,) of each mechanism at a place; text[:place] is known."""
        if self._is_lost:
            return [law.chances] * len(self)
        return [mechanism.law(law, text, place) for mechanism in self.known]

    def see(self, token: Key) -> None:
        """The token of that place."""
        if not self._is_lost:
            for mechanism in self.known:
                mechanism.see(token)
