"""Medians of timings with 95% intervals, for clocks on a busy machine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from forerun.measure.records import Interval

Z_95 = 1.96


def median_interval(values: Sequence[float]) -> Interval:
    """The median, and the order statistics that enclose the true one in 95% of cases.

    The number of values below the true median is binomial, so the ranks n/2 -+ 0.98 sqrt(n)
    enclose it, whatever the law of the values.  With few values the interval covers all of them.
    """
    ranked, n = sorted(values), len(values)
    half = Z_95 * math.sqrt(n) / 2
    low = max(0, math.floor(n / 2 - half))
    high = min(n - 1, math.ceil(n / 2 + half) - 1)
    return Interval(median(ranked), ranked[low], ranked[max(high, low)])
