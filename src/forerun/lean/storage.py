"""Stores weights in few bits that give back every float32 exactly.

The cost of a pass of few tokens is that of reading weights, and most float32 weights were fewer
bits once: a checkpoint saved in 16 bits, or a file of 4-bit numbers written out.  Such a matrix is
kept in its original bits, and a weight becomes the same float32 again in a register, or is
multiplied as a whole number and a scale.  Nothing is rounded: a format is used only where every
weight survives the way there and back.

The block formats keep GGUF's Q8_0, Q5_0, Q4_1 and Q4_0, whose exact scales follow from the weights
of a block.  The largest is 127 times the scale of a Q8_0 and 16 times that of a Q5_0.  The
least is the offset of a Q4_1, and the largest 15 scales more.  The largest is the offset of a Q4_0
and -8 times its scale.  Matrices of several types that are used as one may have blocks of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from forerun.lean.dots import DOTS, FOUR, LIMBS_4, LIMBS_8, OFFSET, Dots
from forerun.lean.formats import BLOCK, BLOCKS, Format
from forerun.lean.packing import extremes, fits, pack4, pack8
from forerun.lean.shape import HAS_DOT_PRODUCTS, LANES, is_arm

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]


class Layout(NamedTuple):
    """The layout of a block in memory: `limb_tile` explains it, and `formats` that for floats."""

    lanes: int  # outputs beside each other
    side_by_side: int  # inputs of one output beside each other
    apart: int  # distance of the two inputs whose 4-bit numbers share a byte
    is_offset: bool  # signed numbers are kept OFFSET higher


def layout_for(dots: Dots) -> Layout:
    """The memory layout of blocks for a processor with these instructions."""
    return Layout(dots.sums, FOUR, BLOCK // 2, dots.is_offset)


FOR_FLOATS = Layout(LANES, 1, 1, False)
LAYOUT_8 = layout_for(DOTS) if LIMBS_8 else FOR_FLOATS
LAYOUT_4 = layout_for(DOTS) if LIMBS_4 else FOR_FLOATS

BLOCKS_PAY = HAS_DOT_PRODUCTS or not is_arm()
"""Whether blocks are faster than float32.  ARM without products of bytes converts blocks to floats
more slowly than it reads floats: one core of a Neoverse-N1 took 8.4 ms (8 bits) and 9.9 ms (4 bits)
against 6.9 ms for 49,152 x 576 weights and one token, 14.5 and 16.6 ms against 7.0 ms for four."""


def padded(count: int) -> int:
    """The next multiple of LANES."""
    return -(-count // LANES) * LANES


def to_panels(matrix: NDArray[Any], lanes: int = LANES) -> NDArray[Any]:
    """A matrix (out, in) as panels (out / lanes, in, lanes); missing outputs are zero."""
    out, depth = matrix.shape
    full = np.zeros((padded(out), depth), matrix.dtype)
    full[:out] = matrix
    return np.ascontiguousarray(full.reshape(-1, lanes, depth).transpose(0, 2, 1))


class Stored(NamedTuple):
    """A matrix as panels of bytes."""

    format: Format
    panels: Bytes  # (out / LANES, bytes of a panel)


def store(matrix: Floats) -> Stored:
    """A matrix (out, in) in the first format that keeps every weight exactly, among those that are
    faster than float32 on this processor."""
    if BLOCKS_PAY and matrix.shape[1] % BLOCK == 0:
        for shrink in (block4, block8):
            # A format that does not fit a few outputs is not tried on the whole matrix.
            if shrink(matrix[:4]) is not None and (stored := shrink(matrix)) is not None:
                return stored
    return bfloat16(matrix) or float16(matrix) or float32(matrix)


def float32(matrix: Floats) -> Stored:
    """Store the matrix in float32, which always works."""
    panels = to_panels(matrix)
    return Stored(Format.FLOAT32, panels.reshape(len(panels), -1).view(np.uint8))


def bfloat16(matrix: Floats) -> Stored | None:
    """Store the matrix in bfloat16; None if that would round some weight."""
    bits = matrix.view(np.uint32)
    if (bits & 0xFFFF).any():
        return None
    panels = to_panels((bits >> 16).astype(np.uint16))
    return Stored(Format.BFLOAT16, panels.reshape(len(panels), -1).view(np.uint8))


def float16(matrix: Floats) -> Stored | None:
    """Store the matrix in float16; None if that would round some weight."""
    if not np.array_equal(_half(matrix), matrix):
        return None
    panels = to_panels(matrix.astype(np.float16))
    return Stored(Format.FLOAT16, panels.reshape(len(panels), -1).view(np.uint8))


def block8(matrix: Floats, layout: Layout = LAYOUT_8) -> Stored | None:
    """Store the matrix in BLOCK8, which fits weights from Q8_0 and Q5_0; None if some weight is not
    d * q."""
    low, high = _extremes(matrix)
    size = np.maximum(high, -low)
    guesses = [(_half(size / count), np.zeros_like(size)) for count in (127, 16)]
    d, _ = _best(matrix, guesses, -127, 127)
    return _packed(Format.BLOCK8, matrix, [d], layout)


def block4(matrix: Floats, layout: Layout = LAYOUT_4) -> Stored | None:
    """Store the matrix in BLOCK4, which fits weights from Q4_0 and Q4_1; None if some weight is not
    d * q + m."""
    low, high = _extremes(matrix)
    largest = np.where(high > -low, high, low)
    guesses = [(_half((high - low) / 15), _half(low)), (_half(largest / -8), _half(largest))]
    return _packed(Format.BLOCK4, matrix, _best(matrix, guesses, 0, 15), layout)


def rounded(matrix: Floats) -> Floats:
    """The nearest matrix that BLOCK8 can store. This changes weights, so the result is another
    model."""
    blocks = matrix.reshape(len(matrix), -1, BLOCK)
    d = _half(np.abs(blocks).max(2) / 127)
    q = np.clip(np.rint(blocks / _divisor(d)), -127, 127)
    nearest: Floats = (d[..., None] * q).reshape(matrix.shape)
    return nearest


def _best(
    matrix: Floats, guesses: list[tuple[Floats, Floats]], least: int, most: int
) -> tuple[Floats, Floats]:
    """For each block the first guess (d, m) with which all its weights are d * q + m, q from
    `least` to `most`; the last guess where none fits.  Two arrays (out, blocks)."""
    (d, m), *others = guesses
    is_fit = np.empty(d.shape, np.bool_)
    for other_d, other_m in others:
        fits(matrix, d, m, least, most, is_fit)
        if is_fit.all():
            break
        d, m = np.where(is_fit, d, other_d), np.where(is_fit, m, other_m)
    return d, m


def _extremes(matrix: Floats) -> tuple[Floats, Floats]:
    low, high = np.empty((2, len(matrix), matrix.shape[1] // BLOCK), np.float32)
    extremes(matrix, low, high)
    return low, high


def _packed(
    format: Format, matrix: Floats, numbers: Sequence[Floats], layout: Layout
) -> Stored | None:
    """The matrix in blocks of a format; None if some weight does not fit.

    numbers: d, or d and m, each (out, blocks).
    """
    about, (lanes, side_by_side, apart, is_offset) = BLOCKS[format], layout
    headers = [to_panels(number.astype(np.float16), lanes).view(np.uint8) for number in numbers]
    header = about.header * lanes
    space = (0, about.num_bytes * lanes - header)
    blocks = np.pad(np.concatenate(headers, 2), ((0, 0), (0, 0), space))
    d, m = numbers if about.numbers == 2 else (numbers[0], np.zeros_like(numbers[0]))
    if about.bits == 4:
        fits = pack4(matrix, d, m, lanes, side_by_side, apart, blocks, header)
    else:
        fits = pack8(matrix, d, m, lanes, side_by_side, blocks, header)
    if not fits:
        return None
    if is_offset and format is Format.BLOCK8:
        blocks[:, :, header:] ^= OFFSET  # this adds OFFSET to a signed byte
    return Stored(format, blocks.reshape(len(blocks) * lanes // LANES, -1))


def _half(x: NDArray[Any]) -> Floats:
    """The float16 numbers nearest to x, as float32."""
    return x.clip(-65504, 65504).astype(np.float16).astype(np.float32)


def _divisor(d: Floats) -> Floats:
    """d with a last axis for the weights of a block; 1 in place of 0, where a block is constant."""
    return np.where(d == 0, np.float32(1), d)[..., None]
