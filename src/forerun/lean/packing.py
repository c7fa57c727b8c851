"""Compiled loops that find the scales of a matrix's blocks and pack them as small whole numbers.

They are compiled because a model is packed each time it is loaded.  Numba's cache looks for changes
in this file only, so numbers that depend on the shape of panels are arguments.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from forerun.lean.jit import exact_entry

Floats = NDArray[np.float32]


@exact_entry
def extremes(matrix: Floats, low: Floats, high: Floats) -> None:
    """Write the least and the largest weight of each block into `low` and `high` (out, blocks)."""
    size = matrix.shape[1] // low.shape[1]
    for output in range(len(matrix)):
        for block in range(low.shape[1]):
            weights = matrix[output, block * size : (block + 1) * size]
            least = most = weights[0]
            for weight in weights:
                least = weight if weight < least else least
                most = weight if weight > most else most
            low[output, block], high[output, block] = least, most


@exact_entry
def fits(
    matrix: Floats, d: Floats, m: Floats, least: int, most: int, out: NDArray[np.bool_]
) -> None:
    """Write into `out` (out, blocks) whether all weights of each block equal d * q + m for whole q
    from `least` to `most`."""
    size = matrix.shape[1] // d.shape[1]
    for output in range(len(matrix)):
        for block in range(d.shape[1]):
            scale, offset = d[output, block], m[output, block]
            inverse = np.float32(1) / scale if scale else np.float32(0)
            weights = matrix[output, block * size : (block + 1) * size]
            misfits = 0
            for i in range(size):
                q = np.rint((weights[i] - offset) * inverse)
                misfits += not (least <= q <= most and q * scale + offset == weights[i])
            out[output, block] = misfits == 0


@exact_entry
def pack8(
    matrix: Floats, d: Floats, m: Floats, lanes: int, side_by_side: int,
    blocks: NDArray[np.uint8], header: int,
) -> bool:  # fmt: skip
    """Write the 8-bit q of weights d * q + m behind the headers of blocks (panels, blocks, bytes).

    side_by_side: the number of inputs of a lane that are neighbours.  header: its size in bytes.
    Returns False if some weight has no q from -127 to 127.
    """
    size = matrix.shape[1] // d.shape[1]
    for output in range(len(matrix)):
        panel, lane = divmod(output, lanes)
        for block in range(d.shape[1]):
            scale, offset = d[output, block], m[output, block]
            inverse = np.float32(1) / scale if scale else np.float32(0)
            weights = matrix[output, block * size : (block + 1) * size]
            place = blocks[panel, block, header + lane * side_by_side :]
            misfits = 0
            for i in range(size):
                q = np.rint((weights[i] - offset) * inverse)
                misfits += not (abs(q) <= 127 and q * scale + offset == weights[i])
                at = i % side_by_side
                place[(i - at) * lanes + at] = np.uint8(np.int32(q))
            if misfits:
                return False
    return True


@exact_entry
def pack4(
    matrix: Floats, d: Floats, m: Floats, lanes: int, side_by_side: int, apart: int,
    blocks: NDArray[np.uint8], header: int,
) -> bool:  # fmt: skip
    """Write the 4-bit q of weights d * q + m behind the headers of blocks (panels, blocks, bytes).

    apart: the distance between the two inputs that share a byte.  The other arguments are those of
    `pack8`.  Returns False if some weight has no q from 0 to 15.
    """
    size = matrix.shape[1] // d.shape[1]
    digits = np.empty(size, np.uint8)
    for output in range(len(matrix)):
        panel, lane = divmod(output, lanes)
        for block in range(d.shape[1]):
            scale, offset = d[output, block], m[output, block]
            inverse = np.float32(1) / scale if scale else np.float32(0)
            weights = matrix[output, block * size : (block + 1) * size]
            misfits = 0
            for i in range(size):
                q = np.rint((weights[i] - offset) * inverse)
                misfits += not (0 <= q <= 15 and q * scale + offset == weights[i])
                digits[i] = np.uint8(q)
            if misfits:
                return False
            place = blocks[panel, block, header + lane * side_by_side :]
            for i in range(size // 2):
                first, at = i + i // apart * apart, i % side_by_side
                place[(i - at) * lanes + at] = digits[first] | digits[first + apart] << 4
    return True
