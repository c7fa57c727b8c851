"""`typical` (lossy): accept tokens that are plausible under the target's law (Medusa).

x is kept if p(x) > min(epsilon, delta * exp(-H(p))), where H is the entropy: the bar is lower where
the target is undecided. The rule uses no coins and no draft law. Its output follows no known law;
it approaches greedy decoding as the temperature falls.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import array_api_compat as compat

from forerun.base.arrays import Array
from forerun.base.errors import InputError, explain
from forerun.rules.base import Noise, Residual, Trial, count_leading


@dataclass(frozen=True)
class Typical:
    """The rule `typical`: lossy, on chains.  epsilon, delta: in (0, 1], smaller accepts more."""

    epsilon: float = 0.09
    delta: float = 0.3
    name: ClassVar[str] = "typical"
    needs_draft_probs: ClassVar[bool] = False
    judges_trees: ClassVar[bool] = False
    lossless: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for field in ("epsilon", "delta"):
            value = getattr(self, field)
            if not 0 < value <= 1:
                cure = "Use a number in (0, 1]."
                raise InputError(explain(f"{field} is out of range.", value, cure))

    def decide(self, trial: Trial, noise: Noise) -> tuple[Array, Array]:
        xp, used = trial.xp, trial.used
        probs = trial.target.at(trial.tokens, used)  # (B, K)
        bars = [self._bar(trial, slot) for slot in range(probs.shape[1])]
        accepted = used & (probs > xp.stack(bars, axis=1)) if bars else used
        num_accepted = count_leading(xp, accepted)
        return num_accepted, noise.draw(Residual(replace(trial, draft=None), num_accepted))

    def _bar(self, trial: Trial, slot: int) -> Array:
        """The probabilities (B,) that tokens at this slot must exceed."""
        xp, used = trial.xp, trial.used[:, slot]
        slots = xp.where(used, xp.full_like(trial.lengths, slot), xp.zeros_like(trial.lengths))
        law = trial.target.take(trial.everyone, slots)
        logs = xp.log(xp.where(law > 0, law, xp.ones_like(law[:1, :1])))
        bar = self.delta * xp.exp(xp.sum(law * logs, axis=1))
        return xp.minimum(bar, xp.asarray(self.epsilon, dtype=bar.dtype, device=compat.device(bar)))
