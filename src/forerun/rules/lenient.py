"""`lenient` (lossy): accept x with chance min(1, p(x) / (lenience q(x))).

More tokens are accepted, but the law is no longer the target's.  It stays bounded: every token's
probability is at most p / lenience.  lenience = 1 is the `ratio` rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from forerun.base.arrays import Array
from forerun.base.errors import InputError, explain
from forerun.rules.base import Noise, Residual, Trial, count_leading
from forerun.rules.ratio import ratios


@dataclass(frozen=True)
class Lenient:
    """The rule `lenient`: lossy, on chains.  lenience: in (0, 1], smaller accepts more."""

    lenience: float = 0.5
    name: ClassVar[str] = "lenient"
    needs_draft_probs: ClassVar[bool] = True
    judges_trees: ClassVar[bool] = False
    lossless: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 0 < self.lenience <= 1:
            cure = "Use a number in (0, 1]; 1 is the lossless `ratio` rule."
            raise InputError(explain("lenience is out of range.", self.lenience, cure))

    def decide(self, trial: Trial, noise: Noise) -> tuple[Array, Array]:
        xp, scaled = trial.xp, ratios(trial) / self.lenience
        chances = xp.minimum(scaled, xp.ones_like(scaled))
        accepted = noise.coins(list(range(chances.shape[1])), chances) & trial.used
        num_accepted = count_leading(xp, accepted)
        scale = xp.full_like(scaled[:, 0], 1 / self.lenience) if scaled.shape[1] else None
        return num_accepted, noise.draw(Residual(trial, num_accepted, scale))
