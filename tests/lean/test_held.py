"""Arguments that are taken from Python once."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba")

from forerun.lean.forward import Watched
from forerun.lean.held import Held, Holder, hold
from forerun.lean.jit import counted

# Only types of the package itself: what is held is kept on disk with its types, and processes that
# do not know a type of the tests could not read it.


@counted
def total(held: Any) -> float:
    first, second = held.value
    return first.layers[0] * first.states.sum() + second.sum()


def part(states: Any, scale: int = 1) -> Watched:
    return Watched(np.array([scale]), states)


def held_alone() -> Held:
    """Nobody else has these arrays."""
    return hold((part(np.full((10, 100), 2, np.float32), 3), np.arange(4.0)))


def test_what_is_held_stays_alive_and_is_not_copied() -> None:
    held, shared = held_alone(), np.zeros(3)
    gc.collect()
    np.full((10, 100), 7, np.float32)  # would take memory that was given back
    assert total(held) == 6006
    of_shared = hold((part(np.ones((1, 4), np.float32)), shared))
    shared[:] = 1
    assert total(of_shared) == 7


def test_the_same_arguments_are_held_once_and_others_anew() -> None:
    holder, more = Holder(), np.ones(2)
    some = part(np.ones((1, 3), np.float32))
    held = holder(some, more)
    assert holder(some, more) is held
    assert total(held) == 5
    other = holder(some, np.zeros(2))
    assert other is not held
    assert total(other) == 3
    assert total(holder(part(some.states, 2), more)) == 8
