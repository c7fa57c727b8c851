"""How often guesses are kept whose chance a drafter states: its log-odds, shifted.

The shift is learned from guesses that were verified.
"""

from __future__ import annotations

from math import exp

STEP = 0.05  # by which one verified guess moves the shift


def calibrated(value: float, shift: float) -> float:
    """A stated chance with its log-odds shifted."""
    odds = exp(shift) * value / max(1e-6, 1 - value)
    return odds / (1 + odds)


def corrected(shift: float, value: float, is_kept: bool) -> float:
    """The shift after one more guess of this stated chance was verified."""
    return shift + STEP * (is_kept - calibrated(value, shift))
