"""`block`: judge the draft as a whole and keep the longest prefix whose coin succeeds (Sun et al.).

With pi_i = min(pi_{i-1} p(x_i) / q(x_i), 1), the chance that at least i tokens are kept is pi_i.
This is never below the product that the `ratio` rule gives, and the gain grows with K.

Slots are tested from the *last* to the first, and the first success decides. A failed coin says
nothing about shorter prefixes: stopping at the first failure from the left is a different, biased
rule (one of the mutants that certification must catch). The chance h_i of a slot is at most pi_i,
so it is tested by two coins, pi_i and h_i / pi_i: whole rows are read only if the first coin
succeeds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import array_api_compat as compat

from forerun.base.arrays import Array, positive_part, put_rows, sum_rows
from forerun.rules.base import Noise, Residual, Trial, slices
from forerun.rules.ratio import ratios


@dataclass(frozen=True)
class Block:
    """The rule `block`: lossless, on chains."""

    name: ClassVar[str] = "block"
    lossless: ClassVar[bool] = True
    needs_draft_probs: ClassVar[bool] = True
    judges_trees: ClassVar[bool] = False

    def decide(self, trial: Trial, noise: Noise) -> tuple[Array, Array]:
        """Test slots from the last to the first. Returns the number of accepted tokens (B,), which
        the first success gives, and the token after them (B,)."""
        xp = trial.xp
        survival = survivals(trial)  # pi_0 .. pi_K, (B, K + 1)
        num_accepted = xp.zeros_like(trial.lengths)
        undecided = trial.lengths > 0
        for kept in range(trial.tokens.shape[1], 0, -1):
            testable = undecided & (trial.lengths >= kept)
            if not bool(xp.any(testable)):
                continue
            pi = survival[:, kept]
            hopeful = testable & noise.coins([2 * kept - 2], pi[:, None])[:, 0]
            if not bool(xp.any(hopeful)):
                continue
            shares = _shares(trial, pi, kept, hopeful & (trial.lengths > kept))
            passed = hopeful & noise.coins([2 * kept - 1], shares[:, None])[:, 0]
            num_accepted = xp.where(passed, kept, num_accepted)
            undecided = undecided & ~passed
        scale = xp.take_along_axis(survival, num_accepted[:, None], axis=1)[:, 0]
        return num_accepted, noise.draw(Residual(trial, num_accepted, scale))


def survivals(trial: Trial) -> Array:
    """The chances pi_0 .. pi_K, (B, K + 1), that at least i tokens are kept."""
    xp, factors = trial.xp, ratios(trial)
    columns = [xp.ones(factors.shape[0], dtype=factors.dtype, device=compat.device(factors))]
    for slot in range(factors.shape[1]):
        grown = columns[-1] * factors[:, slot]
        columns.append(xp.minimum(grown, 1.0))
    return xp.stack(columns, axis=1)


def _shares(trial: Trial, pi: Array, kept: int, inner: Array) -> Array:
    """The chances h / pi, (B,), of the second coins.

    At a row's last token (where inner (B,) is false) h = pi. Elsewhere h = Z / (Z + 1 - pi), where
    Z is the mass of (pi p - q)+ after `kept` tokens.
    """
    xp = trial.xp
    shares = xp.ones_like(pi)
    inner = inner & (pi > 0) & (pi < 1)  # h = pi at both ends
    rows = trial.everyone[inner]
    if rows.shape[0] == 0:
        return shares
    assert trial.draft is not None, "law-only rules are never reached without a draft law"
    parts = []
    for some in slices(rows.shape[0], trial.at_a_time):
        there, left = rows[some], pi[inner][some]
        slots = xp.full_like(there, kept)
        owed = left[:, None] * trial.target.take(there, slots) - trial.draft.take(there, slots)
        missing = sum_rows(xp, positive_part(xp, owed))  # Z
        parts.append(missing / (left * (missing + 1 - left)))
    return put_rows(xp, inner, xp.concat(parts), shares)
