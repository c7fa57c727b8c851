"""`ratio`: accept x with chance min(1, p(x) / q(x)), else draw from (p - q)+ (Leviathan, Chen).

min(p, q) of the mass is accepted and (p - q)+ is drawn, which adds up to p.  Exact on average
over the draft, so it needs the true q and coins that nothing else has used.
"""

from __future__ import annotations

from dataclasses import dataclass

from forerun.arrays import Array
from forerun.rules.base import Noise, Trial, count_leading, residual


@dataclass(frozen=True)
class Ratio:
    name: str = "ratio"
    lossless: bool = True
    needs_draft_probs: bool = True

    def decide(self, trial: Trial, noise: Noise) -> tuple[Array, Array]:
        chances = acceptance_chances(trial)
        accepted = noise.coins(list(range(chances.shape[1])), chances) & trial.used
        num_accepted = count_leading(trial.xp, accepted)
        return num_accepted, noise.draw(residual(trial, num_accepted))


def ratios(trial: Trial) -> Array:
    """p(x) / q(x) of every drafted token, (B, K); 0 in slots that hold none."""
    assert trial.draft is not None, "law-only rules are never reached without draft probabilities"
    used = trial.used
    target_at, draft_at = trial.target.at(trial.tokens, used), trial.draft.at(trial.tokens, used)
    return target_at / trial.xp.where(used, draft_at, trial.xp.ones_like(draft_at))


def acceptance_chances(trial: Trial) -> Array:
    """min(1, p(x) / q(x)), (B, K)."""
    found = ratios(trial)
    return trial.xp.minimum(found, trial.xp.ones_like(found))
