"""Faults whose mechanism is known, simulated beside a text: what the next token would be."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from forerun.arrays import HostArray
from forerun.audit.bins import Bins, Key
from forerun.audit.coins import CoinFilter

RANKS = (None, 0, 1)
"""What is taken for the drafts: copies of the text, the likeliest tokens, the second likeliest."""


@dataclass
class Mechanism:
    """Coins by position, with one idea of what is drafted."""

    rank: int | None  # among the likeliest tokens; None: what an n-gram copies
    coins: CoinFilter
    _guess: Key | None = None

    def law(self, law: Bins, copied: Key | None) -> HostArray:
        """The law (B,) of the next token."""
        listed = law.keys[:-1]
        guess = copied if self.rank is None else law.keys[min(self.rank, len(listed))]
        self._guess = guess if guess in listed else None
        known = None if self._guess is None else law.chance(self._guess)
        chance = self.coins.chance(known)
        if chance is None or known is None or known >= 1:
            return law.chances
        moved = law.chances * ((1 - chance) / (1 - known))
        moved[law.index(self._guess or "")] = chance
        return np.asarray(moved)

    def see(self, token: Key) -> None:
        self.coins.see(token == self._guess)


def _known() -> list[Mechanism]:
    return [Mechanism(rank, CoinFilter(coins)) for rank in RANKS for coins in (1, 2)]


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

    def laws(self, law: Bins, copied: Key | None) -> list[HostArray]:
        """The law (B,) of each at the next place.  copied: what an n-gram drafter would guess."""
        if self._is_lost:
            return [law.chances] * len(self)
        return [mechanism.law(law, copied) for mechanism in self.known]

    def see(self, token: Key) -> None:
        """The token of that place."""
        for mechanism in self.known:
            mechanism.see(token)
