"""`match`: sample the target's own tokens, and keep the draft as long as it guessed them.

The emitted text *is* the target's plain sample under its noise and does not depend on the draft in
any way, so every kind of drafting, pruning, merging and adaptivity is allowed. At temperature 0 the
law is a point mass, and this is greedy verification. A drafter that races its own law under the
same noise (Draft.shared) is accepted with probability at least (1 - TV) / (1 + TV), where TV is the
total-variation distance of the laws. On a tree there is one sample per node, and the walk continues
as long as the sample is one of the node's children.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from forerun.base.arrays import Array, put_rows
from forerun.rules.base import Noise, Trial


@dataclass(frozen=True)
class Match:
    """The rule `match`: lossless, on chains and trees."""

    name: ClassVar[str] = "match"
    lossless: ClassVar[bool] = True
    needs_draft_probs: ClassVar[bool] = False
    judges_trees: ClassVar[bool] = True

    def decide(self, trial: Trial, noise: Noise) -> tuple[Array, Array]:
        """Sample the target along the draft as long as the guesses agree. Returns the target row
        reached (B,) and the token sampled there (B,)."""
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
