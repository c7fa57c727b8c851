"""What every acceptance rule is: a pure function of a draft, the target's law, and noise.

Noise is asked for through three verbs (`coins`, `draw`, `race`), never as raw numbers.  In
production they read Philox; `forerun.law` passes an object that follows *every* outcome instead
and so integrates the coins out of this very code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import array_api_compat as compat

from forerun.arrays import Array, Namespace, index_dtype, put_rows
from forerun.rows import Rows


class Noise(Protocol):
    """The randomness of one round, for B rows."""

    def coins(self, slots: list[int], chances: Array) -> Array:
        """Booleans (B, len(slots)), each true with its chance (B, len(slots))."""
        ...

    def draw(self, weights: Array) -> Array:
        """The extra token of each row, (B,), from weights (B, V) that need no normaliser."""
        ...

    def race(self, weights: Array, rows: Array, slots: Array) -> Array:
        """The target's own sample, (R,), of weights (R, V) at the given slots (R,) of rows (R,)."""
        ...


@dataclass(frozen=True)
class Trial:
    """What a rule judges: tokens (B, K) of which lengths (B,) count, and both laws."""

    xp: Namespace
    tokens: Array  # (B, K)
    lengths: Array  # (B,)
    target: Rows  # (B, K + 1, V)
    draft: Rows | None  # (B, K, V)

    @property
    def used(self) -> Array:
        """Which slots hold a draft token, (B, K)."""
        slots = self.xp.arange(
            self.tokens.shape[1], dtype=self.tokens.dtype, device=compat.device(self.tokens)
        )
        return slots[None, :] < self.lengths[:, None]

    @property
    def everyone(self) -> Array:
        """The row numbers, (B,)."""
        return self.xp.arange(
            self.tokens.shape[0], dtype=self.tokens.dtype, device=compat.device(self.tokens)
        )


class Rule(Protocol):
    """An acceptance rule.  Hyper-parameters are frozen fields; there is no state."""

    @property
    def name(self) -> str: ...

    @property
    def lossless(self) -> bool:
        """Whether the emitted tokens follow the target's law exactly."""
        ...

    @property
    def needs_draft_probs(self) -> bool:
        """Whether the rule divides by the law the draft was drawn from (a law-only rule)."""
        ...

    def decide(self, trial: Trial, noise: Noise) -> tuple[Array, Array]:
        """(num_accepted (B,), extra (B,))."""
        ...


def count_leading(xp: Namespace, accepted: Array) -> Array:
    """How many true entries each row (B, K) starts with, (B,)."""
    if accepted.shape[1] == 0:
        return xp.sum(xp.astype(accepted, index_dtype(xp)), axis=1)
    alive = xp.cumulative_prod(xp.astype(accepted, index_dtype(xp)), axis=1)
    return xp.sum(alive, axis=1, dtype=index_dtype(xp))


def positive_part(xp: Namespace, weights: Array) -> Array:
    """(a)+ = max(a, 0), entry by entry."""
    return xp.maximum(weights, xp.zeros_like(weights[:1, :1]))


def residual(trial: Trial, num_accepted: Array, scale: Array | None = None) -> Array:
    """What the target's row after the accepted tokens still owes, (B, V), unnormalised.

    (scale * p - q)+ at the refused slot, p itself where every draft token was accepted.  Only
    one row per sequence is read.  Where rounding leaves no residual at all, p stands in: such a
    refusal has probability of the order of the rounding.
    """
    xp = trial.xp
    whole = trial.target.take(trial.everyone, num_accepted)
    refused = num_accepted < trial.lengths
    if not bool(xp.any(refused)):
        return whole
    assert trial.draft is not None, "law-only rules are never reached without draft probabilities"
    rows, slots = trial.everyone[refused], num_accepted[refused]
    target = whole if rows.shape[0] == whole.shape[0] else whole[refused]
    owed = target if scale is None else scale[refused][:, None] * target
    owed = positive_part(xp, owed - trial.draft.take(rows, slots))
    nothing = xp.max(owed, axis=1, keepdims=True) <= 0
    if bool(xp.any(nothing)):
        owed = xp.where(nothing, target, owed)
    return put_rows(xp, refused, owed, whole)
