"""How sure a test of the law is: an interval for the bias, and the smallest it would have found."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from forerun.base.arrays import HostArray

MISS = 0.05
"""The chance of not finding the smallest bias that a test says it would find."""
Z_MISS = 1.645
"""The quantile of the normal law that belongs to MISS."""
OVERHEAD = math.log(5 * 80)
"""What the right expert pays for starting with its share of the wealth."""


def interval(differences: Sequence[float], level: float) -> tuple[float, float]:
    """Bounds on the mean bias that hold at all times at once, with a chance of 1 - level.

    differences: 0 or 1 less its stated chance, for every token.  Such a number less its true mean
    is sub-Gaussian with variance 1/4, so Robbins' mixture bounds the sum: |S| stays within
    sqrt((V + r) log((V + r) / (r level^2))) with V = n / 4, for any r fixed beforehand.
    """
    count = len(differences)
    if count == 0:
        return -1.0, 1.0
    variance, start = count / 4, 50.0
    width = math.sqrt((variance + start) * math.log((variance + start) / (start * level**2)))
    mean = float(np.mean(differences))
    return max(-1.0, mean - width / count), min(1.0, mean + width / count)


def information(alpha: float) -> float:
    """Nats that a test at level alpha needs to succeed with a chance of 1 - MISS.

    The log-wealth after K nats is about normal with mean K and variance 2 K.
    """
    need = -math.log(alpha) + OVERHEAD
    root = (Z_MISS * math.sqrt(2) + math.sqrt(2 * Z_MISS**2 + 4 * need)) / 2
    return root**2


def smallest_bias(chances: Sequence[float], alpha: float) -> float | None:
    """The mean change of a token's chance that would have been found with a chance of 95%.

    chances: those of the token in question (the likeliest, or the copied one) at every place.
    None if no change of its odds by a factor up to e^3 would.
    """
    law = np.asarray(chances)
    goal = information(alpha)
    low, high = 0.0, 3.0
    if len(law) == 0 or _nats(law, high) < goal:
        return None
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if _nats(law, middle) < goal else (low, middle)
    return float(np.mean(_tilted(law, high) - law))


def tokens_for(bias: float, chances: Sequence[float], alpha: float) -> int | None:
    """About how many tokens a test needs to find a mean change of so much."""
    law = np.asarray(chances)
    if len(law) == 0:
        return None
    variance = float(np.mean(law * (1 - law)))
    if variance <= 0:
        return None
    return math.ceil(information(alpha) * 2 * variance / bias**2)


def _tilted(law: HostArray, theta: float) -> HostArray:
    """Chances whose log-odds are raised by theta."""
    return np.asarray(law * math.exp(theta) / (1 - law + law * math.exp(theta)))


def _nats(law: HostArray, theta: float) -> float:
    """The information in one look at each place, if all are tilted by theta."""
    tilted = np.clip(_tilted(law, theta), 1e-12, 1 - 1e-12)
    law = np.clip(law, 1e-12, 1 - 1e-12)
    each = tilted * np.log(tilted / law) + (1 - tilted) * np.log((1 - tilted) / (1 - law))
    return float(each.sum())
