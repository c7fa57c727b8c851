"""`block` with random numbers at wrong addresses, so that a number is used twice.

These are rules and not functions, because a function is handed its numbers.  The addressings go
with any rule, in `certify`, `law` and the noise that ships.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from forerun.base.arrays import Array
from forerun.noise.addresses import Purpose, by_round
from forerun.rules.base import Noise, Residual, Trial
from forerun.rules.block import Block


@dataclass(frozen=True)
class OneAddress:
    """A round's noise in which every coin lies at slot 0."""

    noise: Noise

    def coins(self, slots: list[int], chances: Array) -> Array:
        return self.noise.coins([0] * len(slots), chances)

    def draw(self, weights: Residual | Array) -> Array:
        return self.noise.draw(weights)

    def race(self, weights: Array, rows: Array, slots: Array) -> Array:
        return self.noise.race(weights, rows, slots)


@dataclass(frozen=True)
class BlockAtOneAddress(Block):
    """`block` that asks for every coin of a round at the same address."""

    name: ClassVar[str] = "block, one address"

    def decide(self, trial: Trial, noise: Noise) -> tuple[Array, Array]:
        return super().decide(trial, OneAddress(noise))


def coins_by_position(purpose: Purpose, first: Any, slot: Any) -> tuple[Any, Any]:
    """The two coins that `block` tosses for a slot, looked up at the slot's own position."""
    if purpose is Purpose.ACCEPT:
        return first + slot // 2, slot % 2
    return by_round(purpose, first, slot)


def drafts_by_position(purpose: Purpose, first: Any, slot: Any) -> tuple[Any, Any]:
    """The number that draws a token of a chain, looked up at the token's own position."""
    if purpose is Purpose.DRAFT:
        return first + slot, slot * 0
    return by_round(purpose, first, slot)
