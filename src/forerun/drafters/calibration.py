"""How often guesses are kept whose chance a drafter states, and what a guess is worth by that.

The log-odds of what one drafter states are shifted by one number, learned from verified guesses.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import exp

UNSTATED = 0.6  # the chance that is assumed of a guess whose drafter states none
STEP = 0.05  # by which one verified guess moves the shift


def calibrated(value: float, shift: float) -> float:
    """A stated chance after shifting its log-odds."""
    odds = exp(shift) * value / max(1e-6, 1 - value)
    return odds / (1 + odds)


def correction(chance: float, is_kept: bool, count: int) -> float:
    """The change of the shift after a guess with this calibrated chance was verified. It is larger
    while `count`, the number of guesses verified before, is small."""
    return max(STEP, 1 / (4 + count)) * (is_kept - chance)


def worth_of(chances: Sequence[float], scoring: Sequence[float]) -> float:
    """The tokens that the best guesses promise, less the tokens that plain decoding could make
    while the guesses are scored.

    scoring: tokens that could be made while 1, 2, ... guesses are scored.
    """
    promised = accumulate(sorted(chances, reverse=True))
    return max((own - cost for own, cost in zip(promised, scoring, strict=False)), default=0.0)
