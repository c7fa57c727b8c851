"""The loops of attention against NumPy, and the promise that queries are on their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba")

from forerun.lean.attention import LOWEST, exp2_total
from forerun.lean.jit import compiled
from forerun.lean.page_tile import QUERIES, multiply_keys, multiply_values_onto
from forerun.lean.shape import LANES
from forerun.lean.tile import multiply_float32_onto

MOST_ROWS, MOST_PANELS = 67, 4


@compiled
def multiply(x: Any, w: int, w_stride: int, panels: int, rows: int, y: Any, count: int) -> None:
    multiply_keys(
        x, 0, x.shape[1], w, w, w_stride, panels, rows, y, 0, y.shape[1], count
    )  # fmt: skip


@compiled
def multiply_onto(
    x: Any, w: int, w_stride: int, panels: int, rows: int, y: Any, count: int
) -> None:
    multiply_values_onto(
        x, 0, x.shape[1], w, w, w_stride, panels, rows, y, 0, y.shape[1], count
    )  # fmt: skip


@compiled
def multiply_one_by_one(x: Any, w: Any, panels: int, rows: int, y: Any, count: int) -> None:
    for i in range(count):
        for panel in range(panels):
            multiply_float32_onto(
                x, i * x.shape[1], 0, w, panel * w.shape[1] * LANES, rows,
                y, i * y.shape[1] + panel * LANES, 0, 1,
            )  # fmt: skip


@compiled
def soften(x: Any, begin: int, end: int, top: Any) -> Any:
    return exp2_total(x, begin, end, top)


def normal(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("onto", [False, True])
@pytest.mark.parametrize("rows", [1, 3, 4, 5, 64, MOST_ROWS])
def test_pages_are_multiplied_as_a_tile_multiplies_one_row_and_panel(onto: bool, rows: int) -> None:
    """To the bit, and what lies past the panels and rows stays as it was."""
    x, w = normal(QUERIES, MOST_ROWS), normal(MOST_PANELS, MOST_ROWS, LANES)
    before = normal(QUERIES, MOST_PANELS * LANES)
    call = multiply_onto if onto else multiply
    for count in range(1, QUERIES + 1):
        for panels in range(1, MOST_PANELS + 1):
            expected, y = before.copy(), before.copy()
            if not onto:
                expected[:count, : panels * LANES] = 0
            exact = expected[:count].astype(np.float64)
            exact[:, : panels * LANES] += np.einsum(
                "ik,pkl->ipl", x[:count, :rows].astype(np.float64), w[:panels, :rows]
            ).reshape(count, -1)
            multiply_one_by_one(x, w, panels, rows, expected, count)
            call(x, w.ctypes.data, w[0].nbytes, panels, rows, y, count)
            assert np.array_equal(y, expected)
            assert np.allclose(y[:count], exact, atol=1e-4)


@pytest.mark.parametrize("count", [1, LANES - 1, LANES, LANES + 1, 3 * LANES + 5])
def test_weights_are_powers_of_two_and_their_sum(count: int) -> None:
    begin, end = 3, 3 + count
    x = normal(count + 9) * 20
    x[end - 1] = top = x[begin:end].max()
    x[begin] = min(x[begin], top - 200) if count > 1 else top
    before = x.copy()
    total = soften(x, begin, end, top)
    exact = np.exp2(np.maximum(before[begin:end] - top, LOWEST).astype(np.float64))
    assert np.allclose(x[begin:end], exact, rtol=3e-7, atol=0)
    assert np.isclose(total, exact.sum(), rtol=1e-6)
    assert x[end - 1] == 1
    assert np.array_equal(x[:begin], before[:begin])
    assert np.array_equal(x[end:], before[end:])
