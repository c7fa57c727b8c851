"""Room for keys and values that grows with the texts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from forerun.lean.attention import Cache, Heads
from forerun.lean.linear import Floats
from forerun.lean.shape import LANES
from forerun.lean.storage import padded

Rotary = Callable[[int], tuple[Floats, Floats]]
"""Cosines and sines (slots, head size / 2) of so many positions."""


def allocate(num_layers: int, num_rows: int, heads: Heads, rotary: Rotary, slots: int) -> Cache:
    """Zeros, because a value that is not to be seen is still multiplied, by zero."""
    shape = num_layers, num_rows, heads.keys
    cos, sin = rotary(slots)
    return Cache(
        keys=np.zeros((*shape, slots // LANES, heads.size, LANES), np.float32),
        values=np.zeros((*shape, slots, heads.wide), np.float32),
        slots=slots,
        cos=cos,
        sin=sin,
    )


def reserve(old: Cache, heads: Heads, rotary: Rotary, longest: int, capacity: int) -> Cache:
    """Room for texts of that length: at least twice what there was, up to the capacity."""
    if longest <= old.slots:
        return old
    slots = padded(max(longest, min(2 * old.slots, capacity)))
    num_layers, num_rows = old.keys.shape[:2]
    new = allocate(num_layers, num_rows, heads, rotary, slots)
    new.keys[:, :, :, : old.slots // LANES] = old.keys
    new.values[:, :, :, : old.slots] = old.values
    return new
