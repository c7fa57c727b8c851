"""Converts rows as the write-ups pass them to the tables that rules read."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from forerun.base.arrays import Array, HostArray, namespace_of
from forerun.base.errors import InputError, explain


def as_table(
    name: str, rows: Sequence[HostArray] | HostArray, vocab_size: int | None = None
) -> HostArray:
    """A float64 table (N, V) from N rows (V,); an empty list gives (0, V).

    name: the argument's name in errors.  Raises InputError for rows of different or wrong width.
    """
    if len(rows) == 0:
        return np.empty((0, vocab_size or 0))
    try:
        table = np.array(rows, dtype=np.float64)
    except (TypeError, ValueError) as error:
        cure = "Pass one array of V probabilities per position."
        received = f"{len(rows)} rows that do not stack"
        raise InputError(explain(f"{name} is no table of numbers.", received, cure)) from error
    if table.ndim != 2 or vocab_size not in (None, table.shape[1]):
        shape = "(N, V)" if vocab_size is None else f"(N, {vocab_size})"
        cure = f"Pass one row per position, {shape} in all."
        raise InputError(explain(f"{name} has a wrong shape.", table.shape, cure))
    return table


def with_bonus_row(target: Array, num_drafted: int) -> Array:
    """K + 1 rows for the rule, which always emits a bonus after full acceptance.

    If only K rows were given, the last one is repeated.  The copy is read after full acceptance
    only, so it changes nothing else, and the caller drops the token drawn from it.
    """
    if len(target) != num_drafted:
        return target[: num_drafted + 1]
    return namespace_of(target=target).concat([target, target[-1:]])
