"""`match`: the target samples its own token; the draft is kept as long as it guessed right.

The emitted text *is* the target's plain sample under the same noise, so it depends on nothing
about the draft: any drafting, pruning, merging or adaptivity is allowed.  At temperature 0 the
law is a point mass and this is greedy verification.  A drafter that races its own law under the
same noise (Draft.shared) is accepted with probability at least (1 - TV) / (1 + TV).  On a tree
the text goes on while what was sampled is among a node's children, one sample per node.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from forerun.base.arrays import Array, put_rows
from forerun.rules.base import Noise, Trial


@dataclass(frozen=True)
class Match:
    name: ClassVar[str] = "match"
    lossless: ClassVar[bool] = True
    needs_draft_probs: ClassVar[bool] = False
    judges_trees: ClassVar[bool] = True

    def decide(self, trial: Trial, noise: Noise) -> tuple[Array, Array]:
        xp = trial.xp
        reached, extra = xp.zeros_like(trial.lengths), xp.zeros_like(trial.lengths)
        alive = trial.lengths >= 0  # rows whose draft has been right so far, (B,)
        for depth in range(trial.height + 1):
            rows = trial.everyone[alive]
            law = trial.target.take(rows, reached[alive])
            sampled = noise.race(law, rows, xp.full_like(rows, depth))
            extra = put_rows(xp, alive, sampled, extra)
            if depth == trial.height:
                break
            follows = trial.used & (trial.parents == reached[:, None] - 1)
            guessed = alive[:, None] & follows & (trial.tokens == extra[:, None])  # (B, K)
            alive = xp.any(guessed, axis=1)
            if not bool(xp.any(alive)):
                break
            node = xp.argmax(xp.astype(guessed, reached.dtype), axis=1)
            reached = xp.where(alive, xp.astype(node, reached.dtype) + 1, reached)
        return reached, extra
