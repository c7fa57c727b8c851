"""Finds the few largest entries of long rows without sorting or partitioning whole rows."""

from __future__ import annotations

from math import isqrt

import numpy as np

from forerun.base.arrays import HostArray


def likeliest(rows: HostArray, count: int) -> HostArray:
    """The columns (R, count) of the largest entries of rows (R, V), the largest first.

    Stripe c consists of the columns c, c + S, c + 2 S, .... The `count` largest entries lie in the
    `count` stripes with the largest maxima, so only those stripes are searched.
    """
    num_rows, width = rows.shape
    count = min(count, width)
    row = np.arange(num_rows)[:, None]
    num_stripes = isqrt(count * width)
    columns = np.arange(width)[None, :]
    if 2 * count < num_stripes:
        depth = width // num_stripes
        whole = depth * num_stripes
        maxima = rows[:, :whole].reshape(num_rows, depth, num_stripes).max(axis=1)
        stripes = np.argpartition(maxima, -count, axis=1)[:, -count:]
        inside = np.arange(0, whole, num_stripes)[:, None] + stripes[:, None, :]
        rest = np.broadcast_to(columns[:, whole:], (num_rows, width - whole))
        columns = np.concatenate([inside.reshape(num_rows, -1), rest], axis=1)
    columns = np.broadcast_to(columns, (num_rows, columns.shape[1]))
    if count < columns.shape[1]:
        largest = np.argpartition(rows[row, columns], -count, axis=1)[:, -count:]
        columns = columns[row, largest]
    order = np.argsort(-rows[row, columns], axis=1, kind="stable")
    return np.asarray(columns[row, order])
