"""The inner loop against NumPy, and the promise that rows do not touch each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba")

from forerun.lean.jit import compiled
from forerun.lean.linear import alternate, to_panels
from forerun.lean.scalar import exp, largest, normalise, total
from forerun.lean.tile import LANES, TOKENS, multiply


@compiled
def product(x: Any, w: Any, y: Any, count: int) -> None:
    multiply(x, 0, x.shape[1], w, 0, w.shape[1], x.shape[1], y, 0, y.shape[1], count)


@compiled
def exps(x: Any, y: Any) -> None:
    for i in range(x.size):
        y[i] = exp(x[i])


def normal(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("depth", [1, 7, 96])
def test_product_of_a_tile(depth: int) -> None:
    x, w = normal(TOKENS, depth), normal(depth, LANES)
    y = np.zeros((TOKENS, LANES), np.float32)
    product(x, w, y, TOKENS)
    assert np.allclose(y, x.astype(np.float64) @ w, atol=1e-5)


def test_whole_numbers_of_8_bits() -> None:
    x = normal(TOKENS, 50)
    w = np.random.default_rng(0).integers(-127, 128, (50, LANES)).astype(np.int8)
    y = np.zeros((TOKENS, LANES), np.float32)
    product(x, w, y, TOKENS)
    assert np.allclose(y, x.astype(np.float64) @ w, atol=1e-2)


def test_a_row_has_the_same_bits_in_every_company() -> None:
    x, w = normal(TOKENS, 96), normal(96, LANES)
    together = np.zeros((TOKENS, LANES), np.float32)
    product(x, w, together, TOKENS)
    for count in range(1, TOKENS + 1):
        y = np.full((TOKENS, LANES), 7, np.float32)
        product(x[TOKENS - count :], w, y, count)
        assert (y[:count] == together[TOKENS - count :]).all()
        assert (y[count:] == 7).all()  # nothing past the rows asked for


def test_panels_hold_the_matrix_transposed() -> None:
    matrix = normal(LANES + 3, 5)
    panels = to_panels(matrix)
    assert panels.shape == (2, 5, LANES)
    assert (panels[0] == matrix[:LANES].T).all()
    assert (panels[1, :, :3] == matrix[LANES:].T).all()
    assert (panels[1, :, 3:] == 0).all()


def test_panels_that_take_turns() -> None:
    gate, up = normal(LANES + 3, 5), normal(LANES + 3, 5) + 9
    both = alternate(gate, up)
    assert both.shape == (4 * LANES, 5)
    assert (both[:LANES] == gate[:LANES]).all()
    assert (both[LANES : 2 * LANES] == up[:LANES]).all()
    assert (both[3 * LANES : 3 * LANES + 3] == up[LANES:]).all()


def test_exp() -> None:
    x = np.linspace(-86, 88, 100_001, dtype=np.float32)
    y = np.empty_like(x)
    exps(x, y)
    assert np.abs(y / np.exp(x.astype(np.float64)) - 1).max() < 2e-7
    far = np.array([-1e30, -200, 200], np.float32)
    exps(far, y)
    assert y[0] == y[1] < 1e-37
    assert np.isfinite(y[2])


def test_reductions_and_norm() -> None:
    x, weight = normal(77), normal(77)
    assert largest(x, 50) == x[:50].max()
    assert total(x, 50) == pytest.approx(float(x[:50].sum()), abs=1e-5)
    expected = x / np.sqrt((x.astype(np.float64) ** 2).mean() + 1e-5) * weight
    normalise(x, weight, np.float32(1e-5), x)
    assert np.allclose(x, expected, atol=1e-5)
