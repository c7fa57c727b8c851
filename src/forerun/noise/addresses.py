"""The addresses of random numbers: a purpose, a position and a slot.

A number used in a round (an acceptance coin, a residual draw, a draft token) belongs to a slot of
the draft. An *addressing* is a function that gives the address of a slot's number. Generation and
the enumeration in `fr.law` use the same one, so `fr.law` and `certify` notice if two uses read the
same number.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any, NamedTuple


class Purpose(IntEnum):
    """The purposes of random numbers. Numbers with different purposes never share bits."""

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
    """The addressing used in generation: the position where the round begins, and the slot.

    The slot's own position would be wrong: a slot that `block` tests and drops is tested again in
    the next round, and needs a new coin there.
    """
    return first, slot


class Address(NamedTuple):
    """The address of one random number of one sequence."""

    purpose: Purpose
    position: int
    slot: int

    def __str__(self) -> str:
        return f"{self.purpose.name} at ({self.position}, {self.slot})"
