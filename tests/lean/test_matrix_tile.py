"""Products of matrices give a token the bits that it has alone, in every format and any number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_blocks import tensor

pytest.importorskip("numba")

from forerun.lean import linear
from forerun.lean.blocks import Raw
from forerun.lean.jit import counted
from forerun.lean.joining import Part, join
from forerun.lean.linear import BLOCK, FINE_BYTES, Matrices
from forerun.lean.shape import HAS_MATRIX_PRODUCTS, LANES

pytestmark = pytest.mark.skipif(not HAS_MATRIX_PRODUCTS, reason="this processor has none")
KINDS = ("Q4_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")
NUM_TOKENS = 67


@counted
def panel(m: Matrices, number: int, x: Any, count: int, y: Any) -> None:
    limbs = np.empty((count, x.shape[1] // BLOCK * FINE_BYTES), np.uint8)
    for i in range(count):
        linear.cut(m, 0, x[i], limbs[i])
    linear.panel(m, 0, number, x, count, y, linear.make_work(count, limbs))


@pytest.mark.parametrize("kind", KINDS)
def test_a_token_has_the_same_bits_alone_and_among_many(kind: str, tmp_path: Path) -> None:
    data, values = tensor(kind, 2 * LANES)
    data = np.tile(data, 2)  # 1,024 inputs: more than are written out at a time
    (tmp_path / kind).write_bytes(data.tobytes())
    depth = 2 * values.shape[1]
    raw = Raw(kind, kind, (2 * LANES, depth), str(tmp_path / kind), 0)
    m = join([Part([raw], [np.zeros(2 * LANES, np.float32)])])
    x = np.random.default_rng(5).normal(size=(NUM_TOKENS, depth)).astype(np.float32)
    x[7] *= 1e-30
    x[20, 5] = np.nan
    x[33] = -x[33].max()  # whole numbers as large as they can be
    for number in range(2):
        alone = np.empty((NUM_TOKENS, LANES), np.float32)
        for token in range(NUM_TOKENS):
            panel(m, number, x[token : token + 1], 1, alone[token : token + 1])
        expected = x.astype(np.float64) @ np.tile(values, 2)[number * LANES :][:LANES].T
        assert np.allclose(
            alone[:7], expected[:7], rtol=1e-4, atol=1e-3 * np.abs(expected[:7]).max()
        )
        for count in (16, 17, 31, 32, 48, NUM_TOKENS):
            found = np.empty((count, LANES), np.float32)
            panel(m, number, x[:count], count, found)
            np.testing.assert_array_equal(found, alone[:count])
