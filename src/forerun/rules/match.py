"""`match`: the target samples its own token; the draft is kept as long as it guessed right.

The emitted text *is* the target's plain sample under the same noise, so it depends on nothing
about the draft: any drafting, pruning, merging or adaptivity is allowed.  At temperature 0 the
law is a point mass and this is greedy verification.  A drafter that races its own law under the
same noise (Draft.shared) is accepted with probability at least (1 - TV) / (1 + TV).
"""

from __future__ import annotations

from dataclasses import dataclass

from forerun.arrays import Array, put_rows
from forerun.rules.base import Noise, Trial


@dataclass(frozen=True)
class Match:
    name: str = "match"
    lossless: bool = True
    needs_draft_probs: bool = False

    def decide(self, trial: Trial, noise: Noise) -> tuple[Array, Array]:
        xp = trial.xp
        num_slots = trial.tokens.shape[1]
        num_accepted, extra = xp.zeros_like(trial.lengths), xp.zeros_like(trial.lengths)
        alive = trial.lengths >= 0  # rows whose draft has been right so far, (B,)
        for slot in range(num_slots + 1):
            rows = trial.everyone[alive]
            slots = xp.full_like(rows, slot)
            sampled = noise.race(trial.target.take(rows, slots), rows, slots)
            extra = put_rows(xp, alive, sampled, extra)
            if slot == num_slots:
                break
            alive = alive & trial.used[:, slot] & (extra == trial.tokens[:, slot])
            if not bool(xp.any(alive)):
                break
            num_accepted = num_accepted + xp.astype(alive, num_accepted.dtype)
        return num_accepted, extra
