"""Packs tensors directly from the bytes of a file (GGUF's blocks, or 16-bit numbers), without
converting them to float32.

GGUF's types become the formats below. The scales are those of the file: a K-quant multiplies a
float16 by a whole number of 6 or 8 bits, and a float32 holds the product exactly.

Q4_0, Q4_1       BLOCK4            weight = d * q + m
    Q5_0, Q8_0       BLOCK8            weight = d * q
    Q5_1, Q5_K       BLOCK5K           weight = d * q + m
    Q4_K             BLOCK4K           weight = d * q + m
    Q3_K, Q6_K       BLOCK6K           weight = d * q
    F16, BF16        FLOAT16, BFLOAT16

Q2_K has offsets for every 16 weights, which no format has: its weights are written out as float32.

A *unit* is what a type packs together, 32 weights or 256.  `_decode` writes the q of one unit, four
to a word, and the d and m of its blocks; what is written from these is the same for all types.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from forerun.base.errors import InputError, explain
from forerun.lean.formats import BLOCK, BLOCKS, Format
from forerun.lean.jit import exact_entry, inner, sources
from forerun.lean.shape import LANES
from forerun.lean.storage import BLOCKS_PAY, LAYOUT_4, LAYOUT_8

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
    "Q5_1": Type(7, 32, 24, halves=(0, 2), format=Format.BLOCK5K),
    "Q8_0": Type(8, 32, 34, zero=128, halves=(0,), format=Format.BLOCK8),
    "Q2_K": Type(10, 256, 84, block=16, halves=(80, 82)),
    "Q3_K": Type(11, 256, 110, block=16, zero=4, halves=(108,), format=Format.BLOCK6K),
    "Q4_K": Type(12, 256, 144, halves=(0, 2), format=Format.BLOCK4K),
    "Q5_K": Type(13, 256, 176, halves=(0, 2), format=Format.BLOCK5K),
    "Q6_K": Type(14, 256, 210, block=16, zero=32, halves=(208,), format=Format.BLOCK6K),
}
Q4_0, Q4_1, Q5_0, Q5_1, Q8_0 = (
    TYPES[name].number for name in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")
)
Q2_K, Q3_K, Q4_K, Q5_K, Q6_K = (TYPES[f"Q{bits}_K"].number for bits in (2, 3, 4, 5, 6))
ONES = np.uint32(0x01010101)
LOW_FOUR, LOW_TWO = np.uint32(0x0F0F0F0F), np.uint32(0x03030303)
"""Masks for the low four bits and the low two bits of each byte of a word."""
LEAST = 32  # the q of -32, of which 16 could overflow a sum of limbs (`limb_tile`)
WORDS = 64  # in the largest unit
MOST_HALF = np.float32(65520)  # and more becomes an infinite float16


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
        found = np.empty((end - begin, self.row_bytes), np.uint8)
        with open(self.file, "rb", buffering=0) as stream:
            stream.seek(self.begin + begin * self.row_bytes)
            view, at = found.reshape(-1).data, 0
            while at < len(view) and (count := stream.readinto(view[at:])):
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
    widen(
        raw, about.number, about.inputs, about.num_bytes, about.block, about.zero, halves(), values
    )
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


def panel_bytes(format: Format, depth: int) -> int:
    """The size of a panel of a matrix with `depth` inputs."""
    if format in BLOCKS:
        about = BLOCKS[format]
        return LANES * depth // about.inputs * about.num_bytes
    return LANES * depth * (4 if format is Format.FLOAT32 else 2)


def pack_rows(raw: Bytes, type: str, out: Bytes, places: NDArray[np.int64]) -> bool:
    """Write rows as panels that begin at `places` of `out`; False if some scale is not finite.

    The last panel may have fewer rows than LANES; its other outputs are zero.
    """
    about = TYPES[type]
    size = panel_bytes(_format_of(type), raw.shape[1] // about.num_bytes * about.inputs)
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
        raw, about.number, about.inputs, about.num_bytes, about.block, about.zero,
        int(_format_of(type)), halves(), minus_eight(), out, out.view(np.uint16),
        out.view(np.uint32), out.view(np.float32), places,
    )  # fmt: skip


def _format_of(type: str) -> Format:
    found = TYPES[type].format
    assert found is not None
    return found


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


@inner
def _word(raw: Bytes, at: int) -> np.uint32:
    """Four bytes, which need not be aligned, as one number. The index is unsigned, so that the
    compiler makes it a single load."""
    first = np.uint64(at)
    return (
        np.uint32(raw[first])
        | np.uint32(raw[first + np.uint64(1)]) << np.uint32(8)
        | np.uint32(raw[first + np.uint64(2)]) << np.uint32(16)
        | np.uint32(raw[first + np.uint64(3)]) << np.uint32(24)
    )


@inner
def _bits(raw: Bytes, at: int) -> Any:
    """The bits of a float16."""
    return np.int64(raw[at]) | np.int64(raw[at + 1]) << 8


@inner
def _half(raw: Bytes, at: int, halves: Floats) -> Any:
    return halves[_bits(raw, at)]


@inner
def _spread(bits: np.uint32) -> np.uint32:
    """Spread the low four bits over a word, one in each byte."""
    return (
        (bits & np.uint32(1))
        | (bits & np.uint32(2)) << np.uint32(7)
        | (bits & np.uint32(4)) << np.uint32(14)
        | (bits & np.uint32(8)) << np.uint32(21)
    )


@inner
def _decode(
    raw: Bytes, at: int, type: int, halves: Floats, q: NDArray[np.uint32], d: Floats, m: Floats
) -> None:
    """Decode the unit at byte `at` of `raw`: write its q, four to a word, and the scales of its
    blocks."""
    four = np.uint32(4)
    if type == Q8_0:
        d[0], m[0] = _half(raw, at, halves), np.float32(0)
        for i in range(8):
            q[i] = _word(raw, at + 2 + 4 * i) ^ ONES << np.uint32(7)  # signed; now 128 is zero
    elif type in (Q4_0, Q4_1):
        d[0] = _half(raw, at, halves)
        m[0] = d[0] * np.float32(-8) if type == Q4_0 else _half(raw, at + 2, halves)
        at += 2 if type == Q4_0 else 4
        for i in range(4):
            word = _word(raw, at + 4 * i)
            q[i], q[i + 4] = word & LOW_FOUR, word >> four & LOW_FOUR
    elif type in (Q5_0, Q5_1):
        d[0] = _half(raw, at, halves)
        m[0] = np.float32(0) if type == Q5_0 else _half(raw, at + 2, halves)
        at += 2 if type == Q5_0 else 4
        fifth = _word(raw, at)
        for i in range(4):
            word, bits = _word(raw, at + 4 + 4 * i), fifth >> np.uint32(4 * i)
            q[i] = word & LOW_FOUR | _spread(bits) << four
            q[i + 4] = word >> four & LOW_FOUR | _spread(bits >> np.uint32(16)) << four
    elif type in (Q4_K, Q5_K):
        whole, least = _half(raw, at, halves), _half(raw, at + 2, halves)
        for j in range(8):
            if j < 4:
                scale, offset = raw[at + 4 + j] & 63, raw[at + 8 + j] & 63
            else:
                scale = raw[at + 8 + j] & 15 | (raw[at + j] >> 6) << 4
                offset = raw[at + 8 + j] >> 4 | (raw[at + 4 + j] >> 6) << 4
            d[j], m[j] = whole * np.float32(scale), -(least * np.float32(offset))
        digits = at + 16 if type == Q4_K else at + 48
        for j in range(4):
            for i in range(8):
                word = _word(raw, digits + 32 * j + 4 * i)
                low, high = word & LOW_FOUR, word >> four & LOW_FOUR
                if type == Q5_K:
                    fifths = _word(raw, at + 16 + 4 * i) >> np.uint32(2 * j)
                    low |= (fifths & ONES) << four
                    high |= (fifths >> np.uint32(1) & ONES) << four
                q[16 * j + i], q[16 * j + 8 + i] = low, high
    elif type == Q6_K:
        whole = _half(raw, at + 208, halves)
        for j in range(16):
            d[j], m[j] = whole * np.float32(np.int8(raw[at + 192 + j])), np.float32(0)
        for j in range(2):
            for i in range(8):
                first = _word(raw, at + 64 * j + 4 * i)
                second = _word(raw, at + 64 * j + 32 + 4 * i)
                high = _word(raw, at + 128 + 32 * j + 4 * i)
                to = 32 * j + i
                q[to] = first & LOW_FOUR | (high & LOW_TWO) << four
                q[to + 8] = second & LOW_FOUR | (high >> np.uint32(2) & LOW_TWO) << four
                q[to + 16] = first >> four & LOW_FOUR | (high >> four & LOW_TWO) << four
                q[to + 24] = second >> four & LOW_FOUR | (high >> np.uint32(6) & LOW_TWO) << four
    elif type == Q3_K:
        whole = _half(raw, at + 108, halves)
        for j in range(16):
            low = raw[at + 96 + j % 8] >> (0 if j < 8 else 4) & 15
            high = raw[at + 104 + j % 4] >> 2 * (j // 4) & 3
            d[j], m[j] = whole * np.float32(np.int64(low | high << 4) - 32), np.float32(0)
        for j in range(8):
            for i in range(8):
                low = (
                    _word(raw, at + 32 + 32 * (j // 4) + 4 * i) >> np.uint32(2 * (j % 4)) & LOW_TWO
                )
                high = _word(raw, at + 4 * i) >> np.uint32(j) & ONES
                q[8 * j + i] = low | high << np.uint32(2)
    else:  # Q2_K
        whole, least = _half(raw, at + 80, halves), _half(raw, at + 82, halves)
        for j in range(16):
            d[j] = whole * np.float32(raw[at + j] & 15)
            m[j] = -(least * np.float32(raw[at + j] >> 4))
        for j in range(8):
            for i in range(8):
                word = _word(raw, at + 16 + 32 * (j // 4) + 4 * i)
                q[8 * j + i] = word >> np.uint32(2 * (j % 4)) & LOW_TWO


def _build_widen(revision: int) -> Callable[..., None]:
    @exact_entry
    def widen(
        raw: Bytes, type: int, inputs: int, num_bytes: int, block: int, zero: int, halves: Floats,
        out: Floats,
    ) -> None:  # fmt: skip
        """Write rows of a type as float32 (rows, inputs)."""
        q, d, m = np.empty(WORDS, np.uint32), np.empty(16, np.float32), np.empty(16, np.float32)
        for row in range(len(raw)):
            for unit in range(raw.shape[1] // num_bytes):
                _decode(raw[row], unit * num_bytes + 0 * revision, type, halves, q, d, m)
                for i in range(inputs):
                    digit = np.int64(q[i // 4] >> np.uint32(8 * (i % 4)) & np.uint32(255)) - zero
                    value = np.float32(digit) * d[i // block] + m[i // block]
                    out[row, unit * inputs + i] = value

    return widen


def _build_pack(revision: int) -> Callable[..., bool]:
    lanes_8, side_8, _, is_offset = LAYOUT_8
    lanes_4, side_4, _, _ = LAYOUT_4
    block4, block8, block4k = int(Format.BLOCK4), int(Format.BLOCK8), int(Format.BLOCK4K)
    block6k = int(Format.BLOCK6K)
    turn = np.uint32(0 if is_offset else 0x80808080)

    @exact_entry
    def pack(
        raw: Bytes, type: int, inputs: int, num_bytes: int, block: int, zero: int, format: int,
        halves: Floats, minus_eight: NDArray[np.uint16], out: Bytes, out16: NDArray[np.uint16],
        out32: NDArray[np.uint32], floats: Floats, places: NDArray[np.int64],
    ) -> bool:  # fmt: skip
        """Write rows as panels that begin at `places`; False if some scale is not finite."""
        q, d, m = np.empty(WORDS, np.uint32), np.empty(16, np.float32), np.empty(16, np.float32)
        is_four, is_signed = (
            format in (block4, block4k),
            format in (block8, block6k),
        )
        is_half = format in (block4, block8)
        lanes = lanes_4 if is_four else lanes_8
        side = side_4 if is_four else side_8
        words, num_blocks = block // 4, inputs // block  # of a block; of a unit
        header = (1 if is_signed else 2) * (2 if is_half else 4) * lanes
        block_bytes = header + lanes * (block // 2 if is_four else block)
        strip_bytes = raw.shape[1] // num_bytes * num_blocks * block_bytes
        lift, is_finite = ONES * np.uint32(128 - zero), True
        units, row = raw.shape[1] // num_bytes, np.uint64(lanes)
        for first in range(0, len(raw), lanes):
            panel, strip = divmod(first, LANES)
            begin = places[panel] + strip // lanes * strip_bytes
            for unit in range(units):
                for lane in range(min(lanes, len(raw) - first)):
                    _decode(
                        raw[first + lane], unit * num_bytes + 0 * revision, type, halves, q, d, m
                    )
                    for j in range(num_blocks):
                        at, own = begin + (unit * num_blocks + j) * block_bytes, j * words
                        scale, offset = d[j], m[j]
                        if zero == LEAST:
                            is_least = True
                            for i in range(words):
                                is_least &= q[own + i] == 0
                            if is_least:
                                scale *= np.float32(32)
                                for i in range(words):
                                    q[own + i] = ONES * np.uint32(31)
                        is_finite &= abs(scale) < np.inf and abs(offset) < np.inf
                        if is_half:
                            bits = _bits(raw[first + lane], unit * num_bytes)
                            out16[at // 2 + lane] = bits
                            if type == Q4_0:
                                out16[at // 2 + lanes + lane] = minus_eight[bits]
                                is_finite &= abs(offset) < MOST_HALF
                            elif not is_signed:
                                bits = _bits(raw[first + lane], unit * num_bytes + 2)
                                out16[at // 2 + lanes + lane] = bits
                        else:
                            floats[at // 4 + lane] = scale
                            if not is_signed:
                                floats[at // 4 + lanes + lane] = offset
                        at += header
                        if is_signed:
                            for i in range(words):
                                q[own + i] = q[own + i] + lift ^ turn
                        if side == 4 and is_four:
                            for i in range(4):
                                high = q[own + i + 4] << np.uint32(4)
                                out32[at // 4 + i * lanes + lane] = q[own + i] | high
                        elif side == 4:
                            for i in range(words):
                                out32[at // 4 + i * lanes + lane] = q[own + i]
                        elif is_four:
                            for i in range(words):
                                pairs = q[own + i] | q[own + i] >> np.uint32(4)
                                to = np.uint64(at + 2 * i * lanes + lane)
                                out[to] = pairs
                                out[to + row] = pairs >> np.uint32(16)
                        else:
                            for i in range(words):
                                word, to = q[own + i], np.uint64(at + 4 * i * lanes + lane)
                                out[to] = word
                                out[to + row] = word >> np.uint32(8)
                                out[to + row + row] = word >> np.uint32(16)
                                out[to + row + row + row] = word >> np.uint32(24)
        return is_finite

    return pack


widen = _build_widen(sources())
pack = _build_pack(sources())
