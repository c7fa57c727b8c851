"""`ratio`: accept x with chance min(1, p(x) / q(x)), else draw from (p - q)+ (Leviathan, Chen).

Acceptance contributes min(p, q) of the mass and the redraw (p - q)+, which add up to p. This is
exact on average over drafts, so it needs the true q, and coins that nothing else has used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from forerun.base.arrays import Array
from forerun.rules.base import Noise, Residual, Trial, count_leading


@dataclass(frozen=True)
class Ratio:
    """The rule `ratio`: lossless, on chains."""

    name: ClassVar[str] = "ratio"
    lossless: ClassVar[bool] = True
    needs_draft_probs: ClassVar[bool] = True
    judges_trees: ClassVar[bool] = False

    def decide(self, trial: Trial, noise: Noise) -> tuple[Array, Array]:
        chances = acceptance_chances(trial)
        accepted = noise.coins(list(range(chances.shape[1])), chances) & trial.used
        num_accepted = count_leading(trial.xp, accepted)
        return num_accepted, noise.draw(Residual(trial, num_accepted))


def ratios(trial: Trial) -> Array:
    """p(x) / q(x) of every drafted token, (B, K); 0 in slots without a token."""
    target_at = trial.target.at(trial.tokens, trial.used)
    return target_at / trial.xp.where(trial.used, trial.draft_at, 1.0)


def acceptance_chances(trial: Trial) -> Array:
    """The chances min(1, p(x) / q(x)) of accepting each drafted token, (B, K)."""
    return trial.xp.minimum(ratios(trial), 1.0)
