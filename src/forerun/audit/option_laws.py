"""What sampling options should do to a law that is known by its likeliest tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from forerun.audit.bins import ROUNDING, Bins, Key
from forerun.base.arrays import HostArray

MARGIN = 0.02
"""A token this close to the edge of a truncation may fall on either side."""


@dataclass(frozen=True)
class Changed:
    """A law under an option, on the bins of the plain one: chances (B,), and bounds (B,) that they
    do not exceed, however the tail is made up."""

    chances: HostArray
    most: HostArray


def heated(bins: Bins, temperature: float) -> Changed:
    """The law at a temperature below 1.

    A listed token of chance p gets p^(1/T); the tail at most its mass times what the least listed
    token is raised by.
    """
    power = 1 / temperature
    raised = bins.chances**power
    least = float(bins.chances[:-1].min()) if len(bins.keys) > 1 else 1.0
    raised[-1] = (bins.chances[-1] + ROUNDING) * least ** (power - 1)
    total = float(raised[:-1].sum())
    return Changed(raised / (total + float(raised[-1])), raised / total)


def penalised(bins: Bins, said: Sequence[Key], presence: float, frequency: float) -> Changed:
    """The law after penalties for what was said."""
    weights = bins.chances.copy()
    for key, count in Counter(said).items():
        if key in bins.keys[:-1]:
            weights[bins.index(key)] *= np.exp(-presence - frequency * count)
    total = float(weights.sum())
    most = weights / total
    most[-1] += ROUNDING / total
    return Changed(weights / total, most)


def beyond_top_p(bins: Bins, top_p: float) -> set[Key]:
    """Tokens that top-p surely leaves out, the tail's included."""
    before = np.cumsum(bins.chances) - bins.chances
    return {
        key for key, mass in zip(bins.keys, before.tolist(), strict=True) if mass >= top_p + MARGIN
    }


def below_min_p(bins: Bins, min_p: float) -> set[Key]:
    """Tokens that min-p surely leaves out; the tail if its tokens are at most the least listed."""
    bar = (1 - 5 * MARGIN) * min_p * float(bins.chances[0])
    out = {
        key
        for key, chance in zip(bins.keys[:-1], bins.chances.tolist(), strict=False)
        if chance < bar
    }
    return out | {bins.keys[-1]} if out else out


def mass(bins: Bins, keys: set[Key] | Mapping[Key, object]) -> float:
    return float(sum(bins.chance(key) for key in keys))
