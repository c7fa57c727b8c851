"""Compiled loops that find the scales of a matrix's blocks and pack them as small whole numbers.

They are compiled because a model is packed each time it is loaded.  Numba's cache looks for changes
in this file only, so numbers that depend on the shape of panels are arguments.

The scales of K-quants follow from their weights alone.  A K-quant multiplies a float16 by a whole
number of 6 or 8 bits to get the scale of a block, and a block need not use its lowest or its
highest q.  So every q that the extremes may have is tried, until a scale gives back all weights of
the block.  A wrong one fails at its second weight or so.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from forerun.lean.jit import exact_entry

SPLITTER = np.float32(2**7 + 1)  # cuts the 24 bits of a float32 down to 17
LARGEST = np.float32(2**26)  # the largest weight: products of limbs then stay far below overflow
NUDGES = (0.0, 2.0**-17, -(2.0**-17), 2.0**-16, -(2.0**-16))  # relative steps to 17-bit neighbours

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


@exact_entry
def find_scales(matrix: Floats, most: int, d: Floats) -> bool:
    """Find scales d (out, blocks) such that all weights of a block are d * q with |q| <= most.

    The largest scale is taken, so if all q of a block have one magnitude, it is 1.  Returns False
    if some block has no scale.
    """
    size = matrix.shape[1] // d.shape[1]
    for output in range(len(matrix)):
        for block in range(d.shape[1]):
            weights = matrix[output, block * size : (block + 1) * size]
            largest = np.float32(0)
            for weight in weights:
                largest = max(largest, abs(weight))
            steps = 1
            while not _fits(weights, largest / np.float32(steps), np.float32(0), -most, most):
                steps += 1
                if steps > most:
                    return False
            if largest > LARGEST:
                return False
            d[output, block] = largest / np.float32(steps)
    return True


@exact_entry
def find_offsets(matrix: Floats, most: int, d: Floats, m: Floats) -> bool:
    """Find d and m (out, blocks) with which all weights of a block are d * q + m, q from 0 to most.
    Returns False if some block has none."""
    size = matrix.shape[1] // d.shape[1]
    for output in range(len(matrix)):
        for block in range(d.shape[1]):
            weights = matrix[output, block * size : (block + 1) * size]
            is_found, scale, offset = _scale_and_offset(weights, most)
            if not is_found:
                return False
            d[output, block], m[output, block] = scale, offset
    return True


@exact_entry
def _scale_and_offset(weights: Floats, most: int) -> tuple[bool, np.float32, np.float32]:
    """Whether one block has a scale and an offset, and these.

    The scale has 17 bits: those of a float16 times 6 bits.  Weights were rounded, so where the
    offset is large beside the scale, the right scale may be a neighbour of the computed one.
    """
    least = largest = weights[0]
    for weight in weights:
        least, largest = min(least, weight), max(largest, weight)
    if max(largest, -least) > LARGEST:
        return False, np.float32(0), least
    if least == largest:
        return True, np.float32(0), least
    for nudge in NUDGES:
        for steps in range(most, 0, -1):
            scale = _in_17_bits((largest - least) / np.float32(steps) * np.float32(1 + nudge))
            if _fits(weights, scale, least, 0, most):
                return True, scale, least
            for lowest in range(1, most - steps + 1):  # the least q
                offset = _in_17_bits(least - np.float32(lowest) * scale)
                if _fits(weights, scale, offset, 0, most):
                    return True, scale, offset
    return False, np.float32(0), least


@exact_entry
def _fits(
    weights: Floats, scale: np.float32, offset: np.float32, lowest: int, highest: int
) -> bool:
    """Whether all weights are scale * q + offset, q from `lowest` to `highest`."""
    inverse = np.float32(1) / scale if scale else np.float32(0)
    for weight in weights:
        q = np.rint((weight - offset) * inverse)
        if not (lowest <= q <= highest and q * scale + offset == weight):
            return False
    return True


@exact_entry
def _in_17_bits(x: np.float32) -> np.float32:
    """x rounded to 17 bits, by Veltkamp's splitting."""
    part = x * SPLITTER
    return part - (part - x)
