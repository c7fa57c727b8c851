"""Arguments that are taken from Python once."""

from __future__ import annotations

import gc
from typing import Any, NamedTuple

import numpy as np
import pytest

pytest.importorskip("numba")

from forerun.lean.held import Held, Holder, hold
from forerun.lean.jit import counted


class Part(NamedTuple):
    numbers: Any
    scale: float


@counted
def total(held: Any) -> float:
    first, second = held.value
    return first.scale * first.numbers.sum() + second.sum()


def held_alone() -> Held:
    """Nobody else has these arrays."""
    return hold((Part(np.full(1000, 2.0), 0.5), np.arange(4.0)))


def test_what_is_held_stays_alive_and_is_not_copied() -> None:
    held, shared = held_alone(), np.zeros(3)
    gc.collect()
    np.full(1000, 7.0)  # would take memory that was given back
    assert total(held) == 1006
    of_shared = hold((Part(shared, 1.0), shared))
    shared[:] = 1
    assert total(of_shared) == 6


def test_the_same_arguments_are_held_once_and_others_anew() -> None:
    holder, numbers, more = Holder(), np.ones(3), np.ones(2)
    part = Part(numbers, 1.0)
    held = holder(part, more)
    assert holder(part, more) is held
    assert total(held) == 5
    other = holder(part, np.zeros(2))
    assert other is not held
    assert total(other) == 3
    assert total(holder(part._replace(scale=2.0), more)) == 8
