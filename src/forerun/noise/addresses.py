"""What a random number is for, and the address at which a round looks it up.

A number of a round (an acceptance coin, a residual draw, a draft token) belongs to a slot.  An
*addressing* says where the number of a slot lies.  Production and enumeration use the same one,
so an addressing that meets a number twice is seen by `fr.law` and `certify`.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any, NamedTuple


class Purpose(IntEnum):
    """What a number is for.  Different purposes never share bits."""

    TARGET = 0  # the exponential of one token
    TARGET_BLOCK = 1  # the minimum of a block of tokens and its lane
    DRAFT = 2  # drawing draft tokens for the law-only rules
    ACCEPT = 3  # acceptance coins
    RESIDUAL = 4  # the extra token of the law-only rules
    FOLD = 5  # a new seed out of a seed


Addressing = Callable[[Purpose, Any, Any], tuple[Any, Any]]
"""a(purpose, first position of the round, slot) -> (position, index).

Both are whole numbers or arrays that broadcast.  The position must not lie before the round's
first one: numbers before it are taken to be used up.
"""


def by_round(purpose: Purpose, first: Any, slot: Any) -> tuple[Any, Any]:
    """The production addressing: the round's first position, and the slot.

    Not the slot's own position: a slot that `block` tested and dropped is tested again in the
    next round, and must meet a fresh coin there.
    """
    return first, slot


class Address(NamedTuple):
    """Where one number of one sequence lies."""

    purpose: Purpose
    position: int
    slot: int

    def __str__(self) -> str:
        return f"{self.purpose.name} at ({self.position}, {self.slot})"
