"""`siblings`: try the children of a node one after another, each against what the refused ones left
of the target's law.

Child x, drawn from q, is accepted with chance min(1, P(x) / q(x)). P begins as the target's law at
the node; each refusal replaces it by (P - q)+, normalised, for the next child. When no child is
left, the extra token is drawn from P. The children may be drawn with replacement, without, or be
point masses: each comes with the law it was drawn from. On a chain this is `ratio`.

Parents have lower numbers than their children, so one pass over the nodes walks down from the root.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from forerun.base.arrays import Array, Namespace, positive_part, put_rows, sum_rows, take_columns
from forerun.rules.base import Noise, Trial


@dataclass(frozen=True)
class Siblings:
    """The rule `siblings`: lossless, on chains and trees."""

    name: ClassVar[str] = "siblings"
    lossless: ClassVar[bool] = True
    needs_draft_probs: ClassVar[bool] = True
    judges_trees: ClassVar[bool] = True

    def decide(self, trial: Trial, noise: Noise) -> tuple[Array, Array]:
        """Test the nodes in order, each against what its refused siblings left of the target's law.
        Returns the target row reached (B,) and the token after it (B,)."""
        xp, everyone = trial.xp, trial.everyone
        assert trial.draft is not None, "law-only rules are never reached without a draft law"
        reached = xp.zeros_like(trial.lengths)
        owed = trial.target.take(everyone, reached)  # P at the node reached so far, (B, V)
        for node in range(trial.tokens.shape[1]):
            asked = trial.used[:, node] & (trial.parents[:, node] == reached - 1)
            rows = everyone[asked]
            if rows.shape[0] == 0:
                continue
            law = trial.draft.take(rows, xp.full_like(rows, node))
            left, tokens = owed[asked], trial.tokens[:, node][asked][:, None]
            ratio = take_columns(xp, left, tokens)[:, 0] / take_columns(xp, law, tokens)[:, 0]
            chances = put_rows(xp, asked, xp.minimum(ratio, 1.0), xp.zeros_like(owed[:, 0]))
            accepted = asked & noise.coins([node], chances[:, None])[:, 0]
            owed = put_rows(xp, asked, residual(xp, left, law), owed)
            gone_on = everyone[accepted]
            if gone_on.shape[0]:
                after = trial.target.take(gone_on, xp.full_like(gone_on, node + 1))
                owed = put_rows(xp, accepted, after, owed)
                reached = xp.where(accepted, node + 1, reached)
        return reached, noise.draw(owed)


def residual(xp: Namespace, law: Array, drawn: Array) -> Array:
    """(P - q)+, normalised, for rows (R, V); P itself where rounding leaves nothing."""
    rest = positive_part(xp, law - drawn)
    total = sum_rows(xp, rest)[:, None]
    return xp.where(total > 0, rest / xp.where(total > 0, total, 1.0), law)
