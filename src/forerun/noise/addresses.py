"""The addresses of random numbers: their purpose, a position and a slot.

A number of a round (an acceptance coin, a residual draw, a draft token) belongs to a slot.  An
*addressing* says where the number of a slot lies.  Production and enumeration use one addressing,
so `fr.law` and `certify` notice one that reads a number twice.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any, NamedTuple


class Purpose(IntEnum):
    """The use of a random number.  Numbers of different purposes never share bits."""

    TARGET = 0  # the exponential of one token
    TARGET_BLOCK = 1  # the minimum of a block of tokens and its lane
    DRAFT = 2  # drawing draft tokens for the law-only rules
    ACCEPT = 3  # acceptance coins
    RESIDUAL = 4  # the extra token of the law-only rules
    FOLD = 5  # deriving a new seed from a seed


Addressing = Callable[[Purpose, Any, Any], tuple[Any, Any]]
"""a(purpose, first position of the round, slot) -> (position, index).

Both are whole numbers or arrays that broadcast.  The position must not lie before the first
position of the round, because numbers before it may have been used.
"""


def by_round(purpose: Purpose, first: Any, slot: Any) -> tuple[Any, Any]:
    """The production addressing: the round's first position, and the slot.

    The slot's own position would be wrong: a slot that `block` tests and drops is tested again in
    the next round, with a coin that must be new.
    """
    return first, slot


class Address(NamedTuple):
    """The address of one random number of one sequence."""

    purpose: Purpose
    position: int
    slot: int

    def __str__(self) -> str:
        return f"{self.purpose.name} at ({self.position}, {self.slot})"
