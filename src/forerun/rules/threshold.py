"""`threshold` (lossy): always accept likely tokens, and accept others more often than is exact.

x is kept if p(x) >= single, or if a coin falls below p(x) / accumulated. With both numbers at 1
this is the lossless rule for point masses; below 1 it favours drafted tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from forerun.base.arrays import Array
from forerun.base.errors import InputError, explain
from forerun.rules.base import Noise, Residual, Trial, count_leading
from forerun.rules.rows import Points


@dataclass(frozen=True)
class Threshold:
    """The rule `threshold`: lossy, on chains.  Both numbers are in (0, 1]; smaller accepts more."""

    single: float = 0.5
    accumulated: float = 1.0
    name: ClassVar[str] = "threshold"
    needs_draft_probs: ClassVar[bool] = False
    judges_trees: ClassVar[bool] = False
    lossless: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for field in ("single", "accumulated"):
            value = getattr(self, field)
            if not 0 < value <= 1:
                cure = "Use a number in (0, 1]; with both at 1 nothing is bent."
                raise InputError(explain(f"{field} is out of range.", value, cure))

    def decide(self, trial: Trial, noise: Noise) -> tuple[Array, Array]:
        xp, used = trial.xp, trial.used
        probs = trial.target.at(trial.tokens, used)
        chances = xp.minimum(probs / self.accumulated, xp.ones_like(probs))
        chances = xp.where(probs >= self.single, xp.ones_like(probs), chances)
        accepted = noise.coins(list(range(chances.shape[1])), chances) & used
        num_accepted = count_leading(xp, accepted)
        whole = trial.target.take(trial.everyone, num_accepted)
        refused = Points(xp, trial.tokens, whole.shape[1], whole.dtype)
        return num_accepted, noise.draw(Residual(replace(trial, draft=refused), num_accepted))
