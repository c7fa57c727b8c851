"""The distribution of one token as an endpoint reports it: the likeliest tokens, and one bin for
the rest."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from forerun.base.arrays import HostArray

Key = str
"""The identity of a token: its text."""
TAIL: Key = "\0tail"
"""The bin of all tokens that are not listed."""
UNREADABLE = "\ufffd"
"""The replacement character: it stands for bytes that are not valid text, so several tokens look
alike."""
LIKELY_ZERO = 1e-6
"""A log-probability less than this below 0 counts as 0."""
ROUNDING = 2e-4
"""How far rounding may put the tail's probability off, which is 1 less the sum of all listed
ones."""


@dataclass(frozen=True)
class Bins:
    """A distribution over tokens in order of probability, with all unlisted tokens in a last bin,
    the tail.

    chances: the probabilities (B,), which sum to 1.
    most: upper bounds (B,) of the probabilities, allowing for what the endpoint does not say.
    has_tail: False for the distribution among the listed tokens only.
    """

    keys: tuple[Key, ...]
    chances: HostArray
    most: HostArray
    has_tail: bool = True
    has_twins: bool = False  # perhaps two of the listed tokens look alike, and count as one

    @classmethod
    def of(cls, logprobs: Mapping[Key, float]) -> Bins:
        """Make bins from the log-probabilities of the likeliest tokens."""
        listed = {key: math.exp(value) for key, value in logprobs.items() if UNREADABLE not in key}
        total = sum(listed.values())
        if total > 1:
            listed = {key: chance / total for key, chance in listed.items()}
        ordered = sorted(listed, key=lambda key: (-listed[key], key))
        rest = max(1.0 - sum(listed.values()), 0.0)
        chances = [listed[key] for key in ordered]
        return cls(
            (*ordered, TAIL), np.array([*chances, rest]), np.array([*chances, rest + ROUNDING])
        )

    def index(self, key: Key) -> int:
        """The index of a token's bin."""
        return self._places.get(key, len(self.keys) - 1)

    def speaks_of(self, key: Key) -> bool:
        """Whether the distribution covers a token; without a tail, unlisted tokens are not
        covered."""
        return self.has_tail or self.index(key) < len(self.keys) - 1

    @cached_property
    def _places(self) -> dict[Key, int]:
        """The index of every listed token's bin."""
        return {key: place for place, key in enumerate(self.keys)}

    def chance(self, key: Key) -> float:
        """The probability of a token's bin."""
        return float(self.chances[self.index(key)])

    def spread_over(self, keys: Sequence[Key]) -> HostArray:
        """The probabilities of this distribution arranged in the bins of another, (B,); tokens
        without a bin there count in the tail."""
        moved = np.array([self.chances[place] if (place := self._places.get(key)) is not None
                          else 0.0 for key in keys])  # fmt: skip
        moved[-1] += max(0.0, 1.0 - float(moved.sum()))
        return moved
