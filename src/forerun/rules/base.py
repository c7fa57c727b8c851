"""The interface of acceptance rules: pure functions of a draft, the target's probabilities, and
noise.

Rules use noise only through three methods (`coins`, `draw`, `race`), never as raw numbers. In
generation these read Philox numbers (`CounterNoise`). `fr.law` passes an object that follows
*every* outcome instead, and so computes the exact output distribution of the same code.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import array_api_compat as compat
import numpy as np

from forerun.base.arrays import (
    Array,
    Namespace,
    as_indices,
    index_dtype,
    positive_part,
    put_rows,
    to_numpy,
)
from forerun.noise.addresses import Addressing, Purpose, by_round
from forerun.noise.race import Key, coin, draw, race
from forerun.rules.rows import Rows
from forerun.trees.tree import ROOT, Tree

NOWHERE = ROOT - 1
"""The parent of a slot without a token."""


class Noise(Protocol):
    """The randomness of one round, for B rows."""

    def coins(self, slots: list[int], chances: Array) -> Array:
        """Booleans (B, len(slots)), each true with its chance (B, len(slots))."""
        ...

    def draw(self, weights: Residual | Array) -> Array:
        """The extra token of each row, (B,), drawn from weights (B, V), which need not sum to 1."""
        ...

    def race(self, weights: Array, rows: Array, slots: Array) -> Array:
        """The target's own samples (R,) of weights (R, V) at slots (R,) of rows (R,)."""
        ...


@dataclass(frozen=True)
class Trial:
    """The input of a rule: drafted tokens, how many of each row count, and the laws of target and
    drafter.

    A draft of K tokens is a tree of K nodes, and a chain unless `trees` says otherwise. Target row
    0 is the law after the text, target row i + 1 the law after node i. Draft row i is the law that
    node i was drawn from, given its earlier siblings.
    """

    xp: Namespace
    tokens: Array  # (B, K)
    lengths: Array  # (B,)
    target: Rows  # (B, K + 1, V)
    draft: Rows | None  # (B, K, V)
    at_a_time: int | None = None  # rows to compute at once; None for all of them
    trees: Sequence[Tree] | None = None  # (B,), tree r has lengths[r] nodes; None: all are chains

    @cached_property
    def used(self) -> Array:
        """Whether each slot holds a draft token, (B, K)."""
        slots = self.xp.arange(
            self.tokens.shape[1], dtype=self.tokens.dtype, device=compat.device(self.tokens)
        )
        return slots[None, :] < self.lengths[:, None]

    @cached_property
    def everyone(self) -> Array:
        """The row numbers, (B,)."""
        return self.xp.arange(
            self.tokens.shape[0], dtype=self.tokens.dtype, device=compat.device(self.tokens)
        )

    @cached_property
    def draft_at(self) -> Array:
        """The probability that the drafter gave each of its tokens, (B, K); 0 in slots without a
        token."""
        assert self.draft is not None, "law-only rules are never reached without a draft law"
        return self.draft.at(self.tokens, self.used)

    @cached_property
    def shapes(self) -> Sequence[Tree]:
        """The tree of every row, (B,), chains included."""
        return self.trees or [Tree.chain(int(count)) for count in to_numpy(self.lengths)]

    @cached_property
    def kinds(self) -> Sequence[Tree]:
        """The distinct trees among `shapes`."""
        return tuple(dict.fromkeys(self.shapes))

    @cached_property
    def parents(self) -> Array:
        """The parent of each node, (B, K), or (1, K) if all rows have one tree."""
        if self.trees is None:
            return self.by_row([Tree.chain(self.tokens.shape[1]).parents], NOWHERE)
        trees = self.kinds if len(self.kinds) == 1 else self.shapes
        return self.by_row([tree.parents for tree in trees], NOWHERE)

    @cached_property
    def height(self) -> int:
        """The number of tokens on the longest path of any row."""
        if self.trees is None:
            return int(self.tokens.shape[1])
        return max(tree.height for tree in self.kinds)

    def by_row(self, values: Sequence[Sequence[int]], padding: int, more: int = 0) -> Array:
        """Lists of numbers, one per row, as an array padded to (len(values), K + more)."""
        width = self.tokens.shape[1] + more
        padded = [[*row, *[padding] * (width - len(row))] for row in values]
        indices = as_indices(self.xp, padded, compat.device(self.tokens))
        return self.xp.reshape(indices, (len(values), width))

    def path(self, row: int, reached: int) -> tuple[int, ...]:
        """The accepted nodes of a row, in order. `reached` is the target row from which the extra
        token is drawn."""
        return tuple(range(reached)) if self.trees is None else self.trees[row].path(reached - 1)


class Rule(Protocol):
    """An acceptance rule. Its settings are frozen fields, and it has no state."""

    @property
    def name(self) -> str:
        """The name of the rule in `verify` and on the command line."""
        ...

    @property
    def lossless(self) -> bool:
        """Whether the emitted tokens follow the target's law exactly."""
        ...

    @property
    def needs_draft_probs(self) -> bool:
        """Whether the rule divides by the law the draft was drawn from (a law-only rule)."""
        ...

    @property
    def judges_trees(self) -> bool:
        """Whether drafts may branch; if not, the rule receives chains only."""
        ...

    def decide(self, trial: Trial, noise: Noise) -> tuple[Array, Array]:
        """Judge a trial. Returns reached (B,) and extra (B,).

        reached: the target row where the round ends. Row 0 is the text itself, row i + 1 comes
        after node i. So on a chain it is the number of accepted tokens; on a tree
        `trial.path(row, reached)` lists the accepted nodes.
        extra: the token drawn after that row.
        """
        ...


def count_leading(xp: Namespace, accepted: Array) -> Array:
    """How many leading entries of each row of accepted (B, K) are true, (B,)."""
    if accepted.shape[1] == 0:
        return xp.sum(xp.astype(accepted, index_dtype(xp)), axis=1)
    alive = xp.cumulative_prod(xp.astype(accepted, index_dtype(xp)), axis=1)
    return xp.sum(alive, axis=1, dtype=index_dtype(xp))


@dataclass(frozen=True)
class Residual:
    """The unnormalised law (B, V) of the extra token, computed when it is read.

    It is (scale * p - q)+ at the refused slot, and p where every draft token was accepted. If
    rounding leaves nothing of it, p is used; this happens with a probability of the order of the
    rounding error.
    """

    trial: Trial
    num_accepted: Array  # (B,)
    scale: Array | None = None  # (B,)

    def take(self, some: slice) -> Array:
        """The weights of the rows in a slice, (R, V)."""
        trial, num_accepted = self.trial, self.num_accepted[some]
        xp, everyone = trial.xp, trial.everyone[some]
        whole = trial.target.take(everyone, num_accepted)
        refused = num_accepted < trial.lengths[some]
        if trial.draft is None or not bool(xp.any(refused)):
            return whole
        rows, slots = everyone[refused], num_accepted[refused]
        target = whole if rows.shape[0] == whole.shape[0] else whole[refused]
        owed = target if self.scale is None else self.scale[some][refused][:, None] * target
        owed = positive_part(xp, owed - trial.draft.take(rows, slots))
        nothing = xp.max(owed, axis=1, keepdims=True) <= 0
        if bool(xp.any(nothing)):
            owed = xp.where(nothing, target, owed)
        return put_rows(xp, refused, owed, whole)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """All weights (B, V), so that NumPy can use this as a table."""
        return np.asarray(to_numpy(self.take(slice(None))), dtype=dtype)

    def __iter__(self) -> Iterator[Any]:
        return iter(np.asarray(self))


def slices(num_rows: int, at_a_time: int | None) -> list[slice]:
    """Cut num_rows into slices of `at_a_time` rows; one slice of all rows if that is None.

    A processor's cache holds few long rows, and rows are independent, so large computations take a
    few rows at a time.
    """
    step = num_rows if at_a_time is None else at_a_time
    return [slice(start, start + step) for start in range(0, num_rows, max(1, step))]


@dataclass(frozen=True)
class CounterNoise:
    """The noise of a round in generation: random numbers looked up by address.

    Each row has its own seed. Races of the target are addressed by absolute position, which gives
    "same seed, same text"; coins and residual draws are addressed as `addressing` says.
    """

    xp: Namespace
    key: Key
    positions: Array  # (B,): where each row's round begins
    addressing: Addressing = by_round

    def coins(self, slots: list[int], chances: Array) -> Array:
        unit = self._units(slots, Purpose.ACCEPT)
        return unit < self.xp.astype(chances, unit.dtype)

    def draw(self, weights: Residual | Array) -> Array:
        unit = self._units([0], Purpose.RESIDUAL)[:, 0]
        if not isinstance(weights, Residual):
            return draw(self.xp, weights, unit)
        runs = slices(unit.shape[0], weights.trial.at_a_time)
        return self.xp.concat([draw(self.xp, weights.take(some), unit[some]) for some in runs])

    def race(self, weights: Array, rows: Array, slots: Array) -> Array:
        return race(
            self.xp, weights, self.xp.take(self.key, rows, axis=2), self.positions[rows] + slots
        )

    def _units(self, slots: list[int], purpose: Purpose) -> Array:
        """Uniform numbers (B, len(slots)) for a purpose."""
        return coin(self.xp, self.key, self.positions, slots, purpose, self.addressing)
