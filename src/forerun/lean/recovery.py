"""The scales of blocks that nothing but their weights tells of, as those of GGUF's K-quants.

A K-quant multiplies a float16 by a whole number of 6 or 8 bits to get the scale of a block, and a
block need not use its lowest or its highest q.  So every q that the extremes may have is tried,
until a scale gives back all weights of the block.  A wrong one fails at its second weight or so.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from forerun.lean.jit import exact_entry

Floats = NDArray[np.float32]

SPLITTER = np.float32(2**7 + 1)  # cuts the 24 bits of a float32 down to 17
LARGEST = np.float32(2**26)  # of a weight: products of limbs stay far below what a float32 can be
NUDGES = (0.0, 2.0**-17, -(2.0**-17), 2.0**-16, -(2.0**-16))  # to the neighbours in 17 bits


@exact_entry
def find_scales(matrix: Floats, most: int, d: Floats) -> bool:
    """The scales d (out, blocks) of blocks d * q, q from -most to most; False if one has none.

    The largest scale is taken, so all q of a block are of one size only if that size is 1.
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
    """d and m (out, blocks) of blocks d * q + m, q from 0 to most; False if one has none."""
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
    """Those of one block, and whether there are such.

    The scale has 17 bits, those of a float16 times 6 bits.  The extremes were rounded, so where the
    offset is large beside the scale the right one may be next to what they say.
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
    part = x * SPLITTER
    return part - (part - x)
