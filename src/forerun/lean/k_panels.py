"""Panels in the formats of K-quants.  Only a model that has some compiles their loops.

Numba leaves out what follows `is None` where the type of an argument tells the answer, so the flag
is None and not False: compiling a pass takes a quarter less time without these loops.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.lean.dots import LIMBS_4, LIMBS_8
from forerun.lean.formats import BLOCK, Format
from forerun.lean.jit import inner
from forerun.lean.limb_tile import (
    multiply_limbs_block4k,
    multiply_limbs_block5k,
    multiply_limbs_block6k,
)
from forerun.lean.shape import LANES
from forerun.lean.tile import multiply_block4k, multiply_block5k, multiply_block6k
from forerun.lean.unpack import unpack_block4k, unpack_block5k, unpack_block6k

BLOCK6K, BLOCK5K = int(Format.BLOCK6K), int(Format.BLOCK5K)
HALF = BLOCK // 2
K_FORMATS = (Format.BLOCK6K, Format.BLOCK5K, Format.BLOCK4K)

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]


@inner
def multiply_limbs_k(
    has_k_quants: Any, format: int, limbs: Bytes, x_at: int, w: Bytes, at: int, blocks: int,
    sums: Floats, y_at: int, count: int,
) -> None:  # fmt: skip
    """`count` tokens' limbs from `x_at` on times the panel at `at`, into sums from `y_at` on."""
    if has_k_quants is None:
        return
    stride = limbs.shape[1]
    if LIMBS_8 and format == BLOCK6K:
        multiply_limbs_block6k(limbs, x_at, stride, w, at, blocks, sums, y_at, LANES, count)
    elif LIMBS_8 and format == BLOCK5K:
        multiply_limbs_block5k(limbs, x_at, stride, w, at, blocks, sums, y_at, LANES, count)
    else:
        multiply_limbs_block4k(limbs, x_at, stride, w, at, blocks, sums, y_at, LANES, count)


@inner
def multiply_k(
    has_k_quants: Any, format: int, x: Floats, w: Bytes, at: int, depth: int, sums: Floats,
    count: int,
) -> None:  # fmt: skip
    """The first tokens of x (tokens, depth) times the panel at `at`, into sums."""
    if has_k_quants is None:
        return
    blocks = depth // BLOCK
    if format == BLOCK6K:
        multiply_block6k(x, 0, depth, w, at, LANES, 2 * blocks, HALF, sums, 0, LANES, count)
    elif LIMBS_4 or format == BLOCK5K:
        multiply_block5k(x, 0, depth, w, at, LANES, blocks, BLOCK, sums, 0, LANES, count)
    else:
        multiply_block4k(x, 0, depth, w, at, LANES, blocks, HALF, sums, 0, LANES, count)


@inner
def unpack_k(has_k_quants: Any, format: int, w: Bytes, at: int, size: int, flat: Floats) -> None:
    """`size` inputs of a panel from `at` on as float32 (size, LANES)."""
    if has_k_quants is None:
        return
    if format == BLOCK6K:
        unpack_block6k(w, at, size // HALF, HALF, flat)
    elif LIMBS_4 or format == BLOCK5K:
        unpack_block5k(w, at, size // BLOCK, BLOCK, flat)
    else:
        unpack_block4k(w, at, size // BLOCK, HALF, flat)
