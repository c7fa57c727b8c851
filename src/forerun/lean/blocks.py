"""Packs tensors directly from the bytes of a file (GGUF's blocks, or 16-bit numbers), without
converting them to float32.

GGUF's types become the formats below. The scales are those of the file: a K-quant has a float16
for 256 weights, and multiplies it by a whole number of 6 or 8 bits for each block.

Q4_0, Q4_1       BLOCK4            weight = d * q + m
    Q5_0, Q8_0       BLOCK8            weight = d * q
    Q5_1             BLOCK5            weight = d * q + m
    Q5_K             BLOCK5K           weight = d * q + m
    Q4_K             BLOCK4K           weight = d * q + m
    Q3_K, Q6_K       BLOCK6K           weight = d * q
    F16, BF16        FLOAT16, BFLOAT16

Q2_K has offsets for every 16 weights, which no format has: its weights are written out as float32.

A *unit* is what a type packs together, 32 weights or 256.  `decode` writes the q of one unit, four
to a word, and the d and m of its blocks; what is written from these is the same for all types.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cache
from io import FileIO
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from forerun.base.errors import InputError, explain
from forerun.lean.formats import BLOCK, BLOCKS, INPUTS_PER_ROW, ZERO_6K, Format
from forerun.lean.jit import exact_entry, inner, sources
from forerun.lean.shape import LANES
from forerun.lean.storage import BLOCKS_PAY, LAYOUT_4, LAYOUT_8
from forerun.lean.units import (
    BLOCKS_OF_UNIT,
    LOW_FOUR,
    LOW_TWO,
    ONES,
    Q4_0,
    Q6_K,
    WORDS,
    bits_of,
    decode,
)

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


class Type(NamedTuple):
    """The layout of a tensor in a file."""

    number: int  # GGUF's
    inputs: int  # in a unit
    num_bytes: int  # of a unit
    block: int = BLOCK  # inputs that share a scale
    zero: int = 0  # the q of a weight of zero, in types without an offset
    halves: Sequence[int] = ()  # the bytes of a unit at which numbers of 16 bits begin
    format: Format | None = None  # in which panels keep it; None: as float32


TYPES = {
    "F32": Type(0, 1, 4),
    "F16": Type(1, 1, 2, halves=(0,), format=Format.FLOAT16),
    "BF16": Type(30, 1, 2, halves=(0,), format=Format.BFLOAT16),
    "Q4_0": Type(2, 32, 18, halves=(0,), format=Format.BLOCK4),
    "Q4_1": Type(3, 32, 20, halves=(0, 2), format=Format.BLOCK4),
    "Q5_0": Type(6, 32, 22, zero=16, halves=(0,), format=Format.BLOCK8),
    "Q5_1": Type(7, 32, 24, halves=(0, 2), format=Format.BLOCK5),
    "Q8_0": Type(8, 32, 34, zero=128, halves=(0,), format=Format.BLOCK8),
    "Q2_K": Type(10, 256, 84, block=16, halves=(80, 82)),
    "Q3_K": Type(11, 256, 110, block=16, zero=4, halves=(108,), format=Format.BLOCK6K),
    "Q4_K": Type(12, 256, 144, halves=(0, 2), format=Format.BLOCK4K),
    "Q5_K": Type(13, 256, 176, halves=(0, 2), format=Format.BLOCK5K),
    "Q6_K": Type(14, 256, 210, block=16, zero=32, halves=(208,), format=Format.BLOCK6K),
}
EXPONENT = 0x7C00  # of a float16; all ones in an infinity or a NaN


def _read_at(stream: FileIO, into: memoryview, place: int) -> int:
    """Read bytes from a place in a file; returns how many. Where the system allows, the file's own
    position is left alone, which a forked process shares."""
    if hasattr(os, "preadv"):
        return os.preadv(stream.fileno(), [into], place)
    stream.seek(place)
    return stream.readinto(into) or 0


class Raw(NamedTuple):
    """A matrix as bytes in a file."""

    name: str
    type: str
    shape: tuple[int, int]
    file: str
    begin: int  # byte
    heads: int = 0  # the rows of each head lie in llama.cpp's order; 0: rows lie as they are used

    @property
    def format(self) -> Format | None:
        """The format in which the panels of this matrix are kept; None if its values decide
        that."""
        found = TYPES[self.type].format
        return found if BLOCKS_PAY or found in (Format.FLOAT16, Format.BFLOAT16) else None

    @property
    def row_bytes(self) -> int:
        """The bytes of one row."""
        about = TYPES[self.type]
        return self.shape[1] // about.inputs * about.num_bytes

    @property
    def num_bytes(self) -> int:
        """The bytes of the matrix."""
        return self.shape[0] * self.row_bytes

    def read(self, begin: int, end: int) -> Bytes:
        """Read the bytes (rows, bytes of a row) of rows `begin` to `end`, in the order in which
        rows are used."""
        if self.heads and (begin, end) != (0, self.shape[0]):
            return self.read(0, self.shape[0])[begin:end]
        with open(self.file, "rb", buffering=0) as stream:
            return self.read_from(stream, begin, end)

    def read_from(self, stream: FileIO, begin: int, end: int) -> Bytes:
        """Like `read`, from the opened file; of a matrix with `heads`, all rows."""
        found = np.empty((end - begin, self.row_bytes), np.uint8)
        view, at, first = found.reshape(-1).data, 0, self.begin + begin * self.row_bytes
        while at < len(view) and (count := _read_at(stream, view[at:], first + at)):
            at += count
        if at < found.size:
            wrong = "The file of the model became shorter while it was read."
            received = f"{os.path.getsize(self.file):,} bytes in {self.file!r}"
            raise InputError(explain(wrong, received, "Load it again once it is whole."))
        if self.heads:  # from neighbours to halves, in which transformers has rotary pairs
            pairs = found.reshape(self.heads, len(found) // self.heads // 2, 2, -1)
            found = np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(found.shape))
        return found

    def values(self, begin: int, end: int) -> Floats:
        """Rows `begin` to `end` as float32."""
        return widened(self.read(begin, end), self.type)


def widened(raw: Bytes, type: str) -> Floats:
    """Rows (rows, bytes of a row) as float32 (rows, inputs)."""
    about = TYPES[type]
    if type == "F32":
        return raw.view(np.float32)
    if type == "F16":
        return raw.view(np.float16).astype(np.float32)
    if type == "BF16":
        return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    values = np.empty((len(raw), raw.shape[1] // about.num_bytes * about.inputs), np.float32)
    d_at, m_at = about.halves[0], about.halves[-1]
    widen(
        raw, about.number, about.inputs, about.num_bytes, about.block, about.zero, d_at, m_at,
        halves(), values,
    )  # fmt: skip
    return values


def are_finite(raw: Bytes, type: str) -> bool:
    """Whether all numbers in rows (rows, bytes of a row) are finite. Where blocks have 16-bit
    scales and offsets, only these need to be checked."""
    if type == "F32":
        return bool(np.isfinite(raw.view(np.float32)).all())
    units, bits = raw.reshape(-1, TYPES[type].num_bytes), 0x7F80 if type == "BF16" else 0x7C00
    for at in TYPES[type].halves:
        numbers = np.ascontiguousarray(units[:, at : at + 2]).view(np.uint16)
        if ((numbers & bits) == bits).any():
            return False
    return True


@cache
def panel_bytes(format: Format, depth: int) -> int:
    """The size of a panel of a matrix with `depth` inputs."""
    if format in BLOCKS:
        about = BLOCKS[format]
        return LANES * depth // about.unit * about.num_bytes
    return LANES * depth * (4 if format is Format.FLOAT32 else 2)


def pack_rows(raw: Bytes, type: str, out: Bytes, places: NDArray[np.int64]) -> bool:
    """Write rows as panels that begin at `places` of `out`; False if some scale is not finite.

    The last panel may have fewer rows than LANES; its other outputs are zero.
    """
    about = TYPES[type]
    assert about.format is not None
    size = panel_bytes(about.format, raw.shape[1] // about.num_bytes * about.inputs)
    if len(raw) % LANES:
        out[places[-1] : places[-1] + size] = 0
    if about.num_bytes == 2:
        numbers = raw.view(np.uint16)
        for i, at in enumerate(places.tolist()):
            rows = numbers[i * LANES : (i + 1) * LANES]
            panel = out[at : at + size].view(np.uint16).reshape(-1, LANES)
            panel[:, : len(rows)] = rows.T
        return are_finite(raw, type)
    return pack(
        raw, about.number, about.num_bytes, about.zero, about.halves[0], about.halves[-1],
        int(about.format), minus_eight(), out, out.view(np.uint16), out.view(np.uint32), places,
    )  # fmt: skip


@cache
def halves() -> Floats:
    """A table that converts float16 to float32: the index is the bits of the float16."""
    return np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)


@cache
def minus_eight() -> NDArray[np.uint16]:
    """A table of float16 bits: the index is the bits of a number, the entry the bits of -8 times
    that number."""
    with np.errstate(over="ignore", invalid="ignore"):
        return (halves() * np.float32(-8)).astype(np.float16).view(np.uint16)


def _build_widen(revision: int) -> Callable[..., None]:
    @exact_entry
    def widen(
        raw: Bytes, type: int, inputs: int, num_bytes: int, block: int, zero: int, d_at: int,
        m_at: int, halves: Floats, out: Floats,
    ) -> None:  # fmt: skip
        """Write rows of a type as float32 (rows, inputs)."""
        q = np.empty(WORDS, np.uint32)
        scales, offsets = np.empty(BLOCKS_OF_UNIT, np.int16), np.empty(BLOCKS_OF_UNIT, np.int16)
        for row in range(len(raw)):
            for unit in range(raw.shape[1] // num_bytes):
                at = unit * num_bytes + 0 * revision
                decode(raw[row], at, type, q, scales, offsets)
                d, m = halves[bits_of(raw[row], at + d_at)], halves[bits_of(raw[row], at + m_at)]
                for i in range(inputs):
                    digit = np.int64(q[i // 4] >> np.uint32(8 * (i % 4)) & np.uint32(255)) - zero
                    scale, offset = scales[i // block], offsets[i // block]
                    value = np.float32(digit) * (d * np.float32(scale)) + m * np.float32(offset)
                    out[row, unit * inputs + i] = value

    return widen


@inner
def _write_fours(
    q: NDArray[np.uint32], own: int, bits: int, out: NDArray[np.uint32], at: int, lanes: int
) -> None:
    """Write the q (words, outputs) of a block, from word `own` on, as rows of four inputs of each
    of `lanes` outputs.  Outputs are the innermost loop, which the compiler makes vectors of."""
    four, count = np.uint32(4), q.shape[1]
    if bits == 8:
        for i in range(8):
            for lane in range(count):
                out[at + i * lanes + lane] = q[own + i, lane]
    elif bits == 4:
        for i in range(4):
            for lane in range(count):
                out[at + i * lanes + lane] = q[own + i, lane] | q[own + 4 + i, lane] << four
    elif bits == 6:
        for i in range(2):
            for lane in range(count):
                low, high = q[own + i, lane] & LOW_FOUR, q[own + 2 + i, lane] & LOW_FOUR
                out[at + i * lanes + lane] = low | high << four
        for lane in range(count):
            high = np.uint32(0)
            for i in range(4):
                high |= (q[own + i, lane] >> four & LOW_TWO) << np.uint32(2 * i)
            out[at + 2 * lanes + lane] = high
    else:
        for i in range(4):
            for lane in range(count):
                low, high = q[own + i, lane] & LOW_FOUR, q[own + 4 + i, lane] & LOW_FOUR
                out[at + i * lanes + lane] = low | high << four
        for lane in range(count):
            high = np.uint32(0)
            for i in range(8):
                high |= (q[own + i, lane] >> four & ONES) << np.uint32(i)
            out[at + 4 * lanes + lane] = high


@inner
def _digit(q: NDArray[np.uint32], i: int, lane: int) -> np.uint32:
    """The q of input i of an output, from q (words, outputs)."""
    return np.uint32(q[i // 4, lane] >> np.uint32(8 * (i % 4)) & np.uint32(255))


@inner
def _write_ones(
    q: NDArray[np.uint32], own: int, inputs: int, bits: int, chunk: int, out: Bytes, at: int,
    lanes: int,
) -> None:  # fmt: skip
    """Write `inputs` q (words, outputs) from input `own` on as rows of `chunk` inputs of each of
    `lanes` outputs."""
    four, low, count = np.uint32(4), np.uint32(15), q.shape[1]
    half = chunk // 2
    for first in range(own, own + inputs, chunk):
        for i in range(first, first + half):
            for lane in range(count):
                high = _digit(q, i + half, lane) << four
                out[at + lane] = _digit(q, i, lane) & low | high
            at += lanes
        if bits == 8:
            for lane in range(count):
                out[at + lane] = _digit(q, first, lane)
        elif bits > 4:
            for i in range(chunk):
                shift = np.uint32(i * (bits - 4))
                for lane in range(count):
                    high = _digit(q, first + i, lane) >> four << shift
                    out[at + lane] = high if i == 0 else out[at + lane] | high
        if bits != 4:
            at += lanes


def _build_pack(revision: int) -> Callable[..., bool]:
    lanes_8, side_8, _, is_offset = LAYOUT_8
    lanes_4, side_4, _, _ = LAYOUT_4
    shapes = tuple(
        (int(f), *about, about.scales_at, about.header, INPUTS_PER_ROW[f])
        for f, about in BLOCKS.items()
    )
    block8, block6k = int(Format.BLOCK8), int(Format.BLOCK6K)
    turn = np.uint32(0 if is_offset else 0x80808080)

    @exact_entry
    def pack(
        raw: Bytes, type: int, num_bytes: int, zero: int, d_at: int, m_at: int, format: int,
        minus_eight: NDArray[np.uint16], out: Bytes, out16: NDArray[np.uint16],
        out32: NDArray[np.uint32], places: NDArray[np.int64],
    ) -> bool:  # fmt: skip
        """Write rows as panels that begin at `places`; False if some scale is not finite."""
        strip_q = np.empty((WORDS, LANES), np.uint32)
        scales, offsets = np.empty(BLOCKS_OF_UNIT, np.int16), np.empty(BLOCKS_OF_UNIT, np.int16)
        for shape in shapes:
            if shape[0] == format:
                break
        _, inputs, numbers, bits, count, scales_at, header, chunk = shape
        lanes, side = (lanes_4, side_4) if bits == 4 else (lanes_8, side_8)
        words, block_bytes = inputs // 4, lanes * (inputs * bits // 8)
        unit_bytes = lanes * header + count * block_bytes
        units, lift, is_finite = raw.shape[1] // num_bytes, np.uint32(0), True
        if format in (block8, block6k):  # from the q of a zero in the file to that of a panel
            lift = ONES * np.uint32((128 if format == block8 else ZERO_6K) - zero)
        turned = turn if format == block8 else np.uint32(0)
        for first in range(0, len(raw), lanes):
            panel, strip = divmod(first, LANES)
            begin = places[panel] + strip // lanes * units * unit_bytes
            every_q = strip_q[:, : min(lanes, len(raw) - first)]
            for unit in range(units):
                source, to = unit * num_bytes + 0 * revision, begin + unit * unit_bytes
                for lane in range(every_q.shape[1]):
                    row, q = raw[first + lane], every_q[:, lane]
                    decode(row, source, type, q, scales, offsets)
                    d = bits_of(row, source + d_at)
                    out16[(to >> 1) + lane] = d
                    is_finite &= d & EXPONENT != EXPONENT
                    if numbers == 2:
                        m = bits_of(row, source + m_at)
                        m = np.int64(minus_eight[d]) if type == Q4_0 else m
                        is_finite &= m & EXPONENT != EXPONENT
                        out16[(to >> 1) + lanes + lane] = m ^ 0x8000 if count > 1 else m
                    if count > 1:
                        at = to + scales_at * lanes + lane
                        for j in range(count):
                            out[at] = scales[j]
                            if numbers == 2:
                                out[at + lanes] = -offsets[j]
                            at += numbers * lanes
                    if bits == 6:
                        raised = 0
                        for j in range(count if type == Q6_K and side == 4 else 0):
                            any_bit = q[j * 4] | q[j * 4 + 1] | q[j * 4 + 2] | q[j * 4 + 3]
                            if any_bit == 0:  # all are -32, and become -1
                                raised |= 1 << j
                                for i in range(words):
                                    q[j * words + i] = ONES * np.uint32(ZERO_6K - 1)
                        out16[(to >> 1) + lanes + lane] = raised
                if lift or turned:
                    for i in range(count * words):
                        for lane in range(every_q.shape[1]):
                            every_q[i, lane] = every_q[i, lane] + lift ^ turned
                at = to + header * lanes
                for j in range(count):
                    if side == 4:
                        _write_fours(every_q, j * words, bits, out32, at >> 2, lanes)
                    else:
                        _write_ones(every_q, j * inputs, inputs, bits, chunk, out, at, lanes)
                    at += block_bytes
        return is_finite

    return pack


widen = _build_widen(sources())
pack = _build_pack(sources())
