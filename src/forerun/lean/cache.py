"""Room for keys and values that grows with the texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from forerun.lean.attention import Cache, Heads
from forerun.lean.linear import Floats
from forerun.lean.shape import LANES
from forerun.lean.storage import padded
from forerun.models.base import room

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


def reserve(
    old: Cache,
    heads: Heads,
    rotary: Rotary,
    longest: int,
    capacity: int,
    used: Sequence[int] | None = None,
) -> Cache:
    """Room for texts of length `longest`; `capacity` is the hint of `LanguageModel.start`.

    used: how many slots of each row hold something, with an entry for each row that there is to be;
    None keeps the rows as they are.  What is not copied takes up no memory until it is written.
    """
    num_layers, num_rows = old.keys.shape[:2]
    used = [old.slots] * num_rows if used is None else used
    if longest <= old.slots and len(used) <= num_rows:
        return old
    slots = old.slots if longest <= old.slots else padded(room(old.slots, longest, capacity))
    new = allocate(num_layers, len(used), heads, rotary, slots)
    for row, count in enumerate(used[:num_rows]):
        panels = slice(padded(count) // LANES)
        new.keys[:, row, :, panels] = old.keys[:, row, :, panels]
        new.values[:, row, :, :count] = old.values[:, row, :, :count]
    return new
