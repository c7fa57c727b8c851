"""`block`: judge the draft as a whole, keep the longest part that any coin allows (Sun et al.).

With pi_i = min(pi_{i-1} p(x_i) / q(x_i), 1) the chance that at least i tokens are kept is pi_i,
which is never below the product that the `ratio` rule gives; the gain grows with K.

Slots are tested from the *last* to the first and the first success decides.  A failed coin says
nothing about shorter prefixes: stopping at the first failure from the left is a different, biased
rule (kept among the mutants).
"""

from __future__ import annotations

from dataclasses import dataclass

import array_api_compat as compat

from forerun.arrays import Array, put_rows
from forerun.rules.base import Noise, Trial, positive_part, residual
from forerun.rules.ratio import ratios


@dataclass(frozen=True)
class Block:
    name: str = "block"
    lossless: bool = True
    needs_draft_probs: bool = True

    def decide(self, trial: Trial, noise: Noise) -> tuple[Array, Array]:
        xp = trial.xp
        survival = survivals(trial)  # pi_0 .. pi_K, (B, K + 1)
        num_accepted = xp.zeros_like(trial.lengths)
        undecided = trial.lengths > 0
        for kept in range(trial.tokens.shape[1], 0, -1):
            testable = undecided & (trial.lengths >= kept)
            if not bool(xp.any(testable)):
                continue
            chances = _chances(trial, survival[:, kept], kept, testable)
            passed = noise.coins([kept - 1], chances[:, None])[:, 0] & testable
            num_accepted = xp.where(passed, xp.full_like(num_accepted, kept), num_accepted)
            undecided = undecided & ~passed
        scale = xp.take_along_axis(survival, num_accepted[:, None], axis=1)[:, 0]
        return num_accepted, noise.draw(residual(trial, num_accepted, scale))


def survivals(trial: Trial) -> Array:
    """pi_0 .. pi_K, (B, K + 1): the chance that at least i tokens are kept."""
    xp, found = trial.xp, ratios(trial)
    columns = [xp.ones(found.shape[0], dtype=found.dtype, device=compat.device(found))]
    for slot in range(found.shape[1]):
        grown = columns[-1] * found[:, slot]
        columns.append(xp.minimum(grown, xp.ones_like(grown)))
    return xp.stack(columns, axis=1)


def _chances(trial: Trial, survival: Array, kept: int, testable: Array) -> Array:
    """h_i, (B,): pi_K at a row's last token, Z / (Z + 1 - pi) before it."""
    xp = trial.xp
    chances = xp.where(testable, survival, xp.zeros_like(survival))
    inner = testable & (trial.lengths > kept)
    rows = trial.everyone[inner]
    if rows.shape[0] == 0:
        return chances
    assert trial.draft is not None, "law-only rules are never reached without draft probabilities"
    slots, pi = xp.full_like(rows, kept), survival[inner]
    owed = pi[:, None] * trial.target.take(rows, slots) - trial.draft.take(rows, slots)
    missing = xp.sum(positive_part(xp, owed), axis=1)  # Z
    whole = missing + (1 - pi)
    ones = xp.ones_like(whole)
    share = xp.where(whole > 0, missing / xp.where(whole > 0, whole, ones), ones)
    return put_rows(xp, inner, share, chances)
