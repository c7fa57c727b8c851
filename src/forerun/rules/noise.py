"""The noise of a round, as rules ask for it: coins, residual draws and races."""

from __future__ import annotations

from dataclasses import dataclass

from forerun.base.arrays import Array, Namespace
from forerun.noise.addresses import Addressing, Purpose, by_round
from forerun.noise.race import Key, coin, draw, race
from forerun.rules.base import Residual, slices


@dataclass(frozen=True)
class CounterNoise:
    """A round's noise: numbers looked up by each row's seed and the position its round starts at.

    The target's races are addressed by absolute position, which gives "same seed, same text";
    coins and residual draws as `addressing` says.
    """

    xp: Namespace
    key: Key
    positions: Array  # (B,)
    addressing: Addressing = by_round

    def coins(self, slots: list[int], chances: Array) -> Array:
        unit = self._units(slots, Purpose.ACCEPT)
        return unit < self.xp.astype(chances, unit.dtype)

    def draw(self, weights: Residual | Array) -> Array:
        unit = self._units([0], Purpose.RESIDUAL)[:, 0]
        if not isinstance(weights, Residual):
            return draw(self.xp, weights, unit)
        runs = slices(unit.shape[0], weights.trial.at_a_time)
        return self.xp.concat([draw(self.xp, weights.take(some), unit[some]) for some in runs])

    def race(self, weights: Array, rows: Array, slots: Array) -> Array:
        return race(
            self.xp, weights, self.xp.take(self.key, rows, axis=2), self.positions[rows] + slots
        )

    def _units(self, slots: list[int], purpose: Purpose) -> Array:
        """Uniforms (B, len(slots))."""
        return coin(self.xp, self.key, self.positions, slots, purpose, self.addressing)
