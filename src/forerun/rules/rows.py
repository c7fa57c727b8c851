"""Tables of probabilities that are computed only where a rule reads them.

A round has (B, K + 1, V) target probabilities, and a rule needs very few of them: the entries of
the drafted tokens, and one whole row per sequence. `Rows` is the interface for reading these. The
data behind it (probabilities, logits, a sparse support, a point mass) is turned into probabilities,
and checked, when it is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import array_api_compat as compat

from forerun.base.arrays import (
    Array,
    Namespace,
    is_half,
    on_host,
    scatter_rows,
    sum_rows,
    to_numpy,
    upcast,
)
from forerun.base.errors import InputError, explain
from forerun.rules import refusals

SUM_TOLERANCE = 1e-3
HALF_TOLERANCE = 2e-2


class Rows(Protocol):
    """A (B, N, V) table of probabilities that is read by single entries or by whole rows."""

    def at(self, tokens: Array, used: Array) -> Array:
        """The probabilities (B, K) of tokens (B, K) in their slots; 0 where used (B, K) is
        false."""
        ...

    def take(self, rows: Array, slots: Array) -> Array:
        """The rows (R, V) at the given (row, slot) pairs, each (R,)."""
        ...


@dataclass(frozen=True)
class Dense:
    """Rows of probabilities (B, N, V); with `greedy`, a row becomes a point mass on its largest
    entry."""

    xp: Namespace
    probs: Array
    name: str
    greedy: bool = False

    def at(self, tokens: Array, used: Array) -> Array:
        """The probabilities (B, K) of the draft tokens, 0 in unused slots; refuses values that are
        not probabilities."""
        if self.greedy:
            return _entries(self.xp, self, tokens, used)
        drafted = self.probs[:, : tokens.shape[1], :]  # the target's last row is that of the bonus
        entries = self.xp.take_along_axis(drafted, tokens[:, :, None], axis=2)[:, :, 0]
        entries = upcast(self.xp, entries)
        fine = ~used | ((entries >= 0) & (entries <= 1 + self.tolerance))
        if not bool(self.xp.all(fine)):
            row, slot = _first_false(fine)
            wrong = f"{self.name} is not a probability at row {row}, slot {slot}."
            cure = "Every entry must lie in [0, 1]; for logits pass them by that name."
            raise InputError(explain(wrong, f"{float(entries[row, slot])}", cure))
        return self.xp.where(used, entries, 0.0)

    def take(self, rows: Array, slots: Array) -> Array:
        """Whole rows (R, V), checked to sum to 1; with `greedy` as point masses."""
        taken = upcast(self.xp, _take(self.xp, self.probs, rows, slots))
        check_rows(self.xp, taken, rows, slots, self.name, self.tolerance)
        return one_hot_argmax(self.xp, taken) if self.greedy else taken

    @property
    def tolerance(self) -> float:
        """How far the sum of a row may be from 1."""
        return sum_tolerance(self.probs)


@dataclass(frozen=True)
class Logits:
    """Rows of softmax(logits / temperature) from logits (B, N, V); temperature 0 is a point mass on
    the largest logit."""

    xp: Namespace
    logits: Array
    temperature: float
    name: str

    def at(self, tokens: Array, used: Array) -> Array:
        """The probabilities (B, K) of the draft tokens; each needs its whole row."""
        return _entries(self.xp, self, tokens, used)

    def take(self, rows: Array, slots: Array) -> Array:
        """Whole rows (R, V) of the softmax; refuses a row whose largest logit is not finite."""
        xp = self.xp
        taken = upcast(xp, _take(xp, self.logits, rows, slots))
        highest = xp.max(taken, axis=1, keepdims=True)  # NaN if any entry is
        fine = xp.isfinite(highest[:, 0])
        if not bool(xp.all(fine)):
            (bad,) = _first_false(fine)
            received = f"maximum {float(highest[bad, 0])}"
            raise refusals.not_finite(self.name, int(rows[bad]), int(slots[bad]), received)
        if self.temperature == 0:
            return one_hot_argmax(xp, taken)
        weights = xp.exp((taken - highest) / self.temperature)
        return weights / xp.sum(weights, axis=1, keepdims=True)


@dataclass(frozen=True)
class SparseRows:
    """Rows given by their possible tokens: ids and probs (B, N, S)."""

    xp: Namespace
    ids: Array
    probs: Array
    vocab_size: int
    name: str

    def at(self, tokens: Array, used: Array) -> Array:
        self._check_ids(used)
        probs = upcast(self.xp, self.probs)
        hit = self.ids == tokens[:, :, None]
        entries = self.xp.sum(self.xp.where(hit, probs, 0.0), axis=2)
        return self.xp.where(used, entries, 0.0)

    def take(self, rows: Array, slots: Array) -> Array:
        ids = _take(self.xp, self.ids, rows, slots)
        values = upcast(self.xp, _take(self.xp, self.probs, rows, slots))
        check_rows(self.xp, values, rows, slots, self.name, sum_tolerance(self.probs))
        return scatter_rows(self.xp, ids, values, self.vocab_size)

    def _check_ids(self, used: Array) -> None:
        """Raise InputError unless the ids of each row are distinct tokens of the vocabulary."""
        xp, ordered = self.xp, self.xp.sort(self.ids, axis=2)
        twice = xp.any(ordered[:, :, 1:] == ordered[:, :, :-1], axis=2)
        fine = ~twice & (ordered[:, :, 0] >= 0) & (ordered[:, :, -1] < self.vocab_size)
        if not bool(xp.all(fine | ~used)):
            row, slot = _first_false(fine | ~used)
            wrong = f"The ids of {self.name} are no support at row {row}, slot {slot}."
            received = to_numpy(self.ids[row, slot, :]).tolist()
            cure = f"Ids must be distinct and lie in 0 .. {self.vocab_size - 1}."
            raise InputError(explain(wrong, received, cure))


@dataclass(frozen=True)
class Points:
    """Rows that are point masses on tokens (B, N)."""

    xp: Namespace
    tokens: Array
    vocab_size: int
    dtype: Any

    def at(self, tokens: Array, used: Array) -> Array:
        return self.xp.astype((self.tokens == tokens) & used, self.dtype)

    def take(self, rows: Array, slots: Array) -> Array:
        ids = _take(self.xp, self.tokens[:, :, None], rows, slots)
        ones = self.xp.ones(ids.shape, dtype=self.dtype, device=compat.device(ids))
        return scatter_rows(self.xp, ids, ones, self.vocab_size)


def check_rows(
    xp: Namespace, laws: Array, rows: Array, slots: Array, name: str, tolerance: float
) -> None:
    """Raise InputError for rows (R, V) that are not probability distributions. NaN is found too,
    because it fails every comparison."""
    lowest, total = xp.min(laws, axis=1), sum_rows(xp, laws)
    fine = (lowest >= 0) & (xp.abs(total - 1) <= tolerance)
    if bool(xp.all(fine)):
        return
    (bad,) = _first_false(fine)
    low, mass = float(lowest[bad]), float(total[bad])
    fault = "is negative" if low < 0 else "does not sum to 1"
    if mass != mass or low != low or mass in (float("inf"), float("-inf")):
        fault = "has NaN or Inf"
    wrong = f"{name} {fault} at {_place(rows, slots, bad)}."
    received = f"a row with smallest entry {low:.6g} and sum {mass:.6g}"
    cure = "Pass probabilities that sum to 1; for logits pass them by that name."
    raise InputError(explain(wrong, received, cure))


def one_hot_argmax(xp: Namespace, values: Array) -> Array:
    """Point masses (R, V) on the largest entry of each row (the lowest id on ties), as temperature
    0 requires."""
    ids = xp.argmax(values, axis=1)[:, None]
    ones = xp.ones(ids.shape, dtype=values.dtype, device=compat.device(values))
    return scatter_rows(xp, ids, ones, values.shape[1])


def _entries(xp: Namespace, rows: Rows, tokens: Array, used: Array) -> Array:
    """Single entries (B, K) of rows that can only be computed whole, slot by slot."""
    num_rows, num_slots = tokens.shape
    everyone = xp.arange(num_rows, dtype=tokens.dtype, device=compat.device(tokens))
    columns = []
    for slot in range(num_slots):
        there = everyone[used[:, slot]]
        whole = rows.take(there, xp.full_like(there, slot))
        entry = xp.take_along_axis(whole, tokens[:, slot][used[:, slot]][:, None], axis=1)
        columns.append(scatter_rows(xp, there[None, :], xp.permute_dims(entry, (1, 0)), num_rows))
    return xp.concat(columns, axis=0).T if columns else xp.astype(tokens, xp.float32)


def _take(xp: Namespace, table: Array, rows: Array, slots: Array) -> Array:
    """Rows (R, ...) at (row, slot) pairs of a table (B, N, ...); a single one is not copied."""
    if rows.shape[0] == 1 and on_host(xp, compat.device(rows)):
        row, slot = int(rows[0]), int(slots[0])
        return table[row : row + 1, slot, ...]
    flat = xp.reshape(table, (table.shape[0] * table.shape[1], *table.shape[2:]))
    return xp.take(flat, rows * table.shape[1] + slots, axis=0)


def sum_tolerance(probs: Array) -> float:
    """How far from 1 the sum of a row may be, for probabilities of this dtype."""
    return HALF_TOLERANCE if is_half(probs) else SUM_TOLERANCE


def _place(rows: Array, slots: Array, index: int) -> str:
    return f"row {int(rows[index])}, slot {int(slots[index])}"


def _first_false(fine: Array) -> tuple[int, ...]:
    return tuple(int(axis[0]) for axis in (~to_numpy(fine)).nonzero())
