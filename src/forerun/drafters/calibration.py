"""Corrects the chances that drafters state for their guesses, and computes the value of guesses.

One number per drafter, learned from verified guesses, shifts the log-odds of its stated chances.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import exp

UNSTATED = 0.6  # the chance that is assumed of a guess whose drafter states none
STEP = 0.05  # by which one verified guess moves the shift


def calibrated(value: float, shift: float) -> float:
    """A probability that a drafter states, after shifting its log-odds."""
    odds = exp(shift) * value / max(1e-6, 1 - value)
    return odds / (1 + odds)


def correction(chance: float, is_kept: bool, count: int) -> float:
    """How much to change the shift after a guess with this calibrated chance was verified. The step
    is larger while `count`, the number of guesses verified before, is small."""
    return max(STEP, 1 / (4 + count)) * (is_kept - chance)


def worth_of(chances: Sequence[float], scoring: Sequence[float]) -> float:
    """The expected tokens of the best guesses, less the tokens that plain decoding could make in
    the time of scoring them.

    scoring: tokens that could be made while 1, 2, ... guesses are scored.
    """
    promised = accumulate(sorted(chances, reverse=True))
    return max((own - cost for own, cost in zip(promised, scoring, strict=False)), default=0.0)
