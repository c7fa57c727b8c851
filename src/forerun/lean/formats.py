"""How the weights of a panel lie in memory, and the instructions that make float32 of them.

A panel is LANES outputs by all inputs.  It is a sequence of units; a unit is a header and blocks, a
block is rows, and a row holds LANES weights of as many inputs as fill whole bytes.

    FLOAT32, BFLOAT16,
    FLOAT16             one block, no header
    BLOCK8              units of 32 inputs: 8-bit q           weight = d * q
    BLOCK5              units of 32 inputs: 5-bit q           weight = d * q + m
    BLOCK4              units of 32 inputs: 4-bit q           weight = d * q + m
    BLOCK6K             units of 16 blocks of 16: 6-bit q     weight = d * q, q from -32
    BLOCK5K             units of 8 blocks of 32: 5-bit q      weight = d * q + m
    BLOCK4K             units of 8 blocks of 32: 4-bit q      weight = d * q + m

A header is the float16 d, or d and m, of LANES outputs. If a unit has several blocks, signed bytes
follow, by which each block multiplies these. The products have at most 19 bits of a float32's 24,
and d * q at most 24, so they are exact. Before these bytes BLOCK6K has 16 bits for each output: a
block whose bit is 1 has 32 times that scale (see `limb_tile`; in panels for floats all are 0).

A row of fewer than 8 bits is bytes of low four bits, the inputs of its first half in the low and
those of its second half in the high half of a byte, then one byte of the bits above.

Where the processor adds up products of bytes, blocks lie as `limb_tile` says instead.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

from llvmlite import ir
from numba.core import cgutils

from forerun.lean.shape import LANES, READS_HALVES

BLOCK = 32  # inputs whose activations share a scale; a block of weights is as long, or half


class Format(IntEnum):
    """How the weights of a panel are kept."""

    FLOAT32 = 0
    BFLOAT16 = 1
    FLOAT16 = 2
    BLOCK8 = 3  # this and all later ones are in blocks
    BLOCK6K = 4
    BLOCK5K = 5
    BLOCK5 = 6
    BLOCK4 = 7  # this and the next have weights of 4 bits
    BLOCK4K = 8


class Blocks(NamedTuple):
    """The layout of one output of a unit."""

    inputs: int  # of a block, which share d, or d and m
    numbers: int  # d, or d and m
    bits: int  # of a q
    blocks: int = 1  # of a unit; if there are several, each has bytes of its own

    @property
    def unit(self) -> int:
        """The number of inputs."""
        return self.blocks * self.inputs

    @property
    def scales_at(self) -> int:
        """The bytes of the header before those of blocks."""
        return 2 * self.numbers + (2 if self.bits == 6 else 0)

    @property
    def header(self) -> int:
        """The bytes of the header."""
        return self.scales_at + (self.numbers * self.blocks if self.blocks > 1 else 0)

    @property
    def block_bytes(self) -> int:
        """The bytes of the q of a block."""
        return self.inputs * self.bits // 8

    @property
    def num_bytes(self) -> int:
        """The bytes of a unit."""
        return self.header + self.blocks * self.block_bytes


BLOCKS = {
    Format.BLOCK8: Blocks(BLOCK, 1, 8),
    Format.BLOCK6K: Blocks(BLOCK // 2, 1, 6, 16),
    Format.BLOCK5K: Blocks(BLOCK, 2, 5, 8),
    Format.BLOCK5: Blocks(BLOCK, 2, 5),
    Format.BLOCK4: Blocks(BLOCK, 2, 4),
    Format.BLOCK4K: Blocks(BLOCK, 2, 4, 8),
}
UNIT = max(about.unit for about in BLOCKS.values())
ZERO_6K = 32  # BLOCK6K keeps q that many higher, from 0
INPUTS_PER_ROW = dict.fromkeys(Format, 1) | {
    format: {8: 1, 6: 4, 5: 8, 4: 2}[about.bits] for format, about in BLOCKS.items()
}
ROW = {Format.FLOAT32: 4 * LANES, Format.BFLOAT16: 2 * LANES, Format.FLOAT16: 2 * LANES} | {
    format: LANES * INPUTS_PER_ROW[format] * about.bits // 8 for format, about in BLOCKS.items()
}

I8, I16, I32, I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
F16, F32 = ir.HalfType(), ir.FloatType()
BYTE = I8.as_pointer()


def vector(number: Any, lanes: int = LANES) -> Any:
    """The LLVM type of a vector of numbers."""
    return ir.VectorType(number, lanes)


def spread(builder: Any, scalar: Any, lanes: int = LANES) -> Any:
    """A vector with a scalar in every lane."""
    nothing = ir.Constant(vector(scalar.type, lanes), ir.Undefined)
    first = builder.insert_element(nothing, scalar, I32(0))
    return builder.shuffle_vector(first, nothing, ir.Constant(vector(I32, lanes), [0] * lanes))


def declare(builder: Any, result: Any, arguments: list[Any], name: str) -> Any:
    """The LLVM function of that name, declared in the module if it is not yet."""
    return cgutils.get_or_insert_function(builder.module, ir.FunctionType(result, arguments), name)


def multiply_add(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """a * b + c of float32 vectors, rounded once where the processor can."""
    fused = declare(builder, a.type, [a.type] * 3, f"llvm.fmuladd.v{a.type.count}f32")
    return builder.call(fused, [a, b, c])


def load(builder: Any, number: Any, place: Any, lanes: int = LANES) -> Any:
    """A vector from an address that is aligned for one number only."""
    size = {I8: 1, I16: 2, F16: 2, F32: 4}[number]
    return builder.load(builder.bitcast(place, vector(number, lanes).as_pointer()), align=size)


def fetch(builder: Any, place: Any, begin: int, count: int) -> None:
    """Prefetch `count` bytes from `begin` past an address into the cache."""
    call = declare(builder, ir.VoidType(), [BYTE, I32, I32, I32], "llvm.prefetch.p0")
    for offset in range(begin, begin + count, 64):
        later = builder.gep(place, [I64(offset)])
        builder.call(call, [later, I32(0), I32(3), I32(1)])  # to read, keep close, data


def read_header(builder: Any, format: Format, place: Any) -> list[Any]:
    """The d, or d and m, of a unit as float32 vectors (LANES,)."""
    count = BLOCKS[format].numbers if format in BLOCKS else 0
    return [read_half(builder, builder.gep(place, [I64(2 * LANES * i)])) for i in range(count)]


def read_scales(
    builder: Any, format: Format, place: Any, block: Any, header: list[Any], lanes: int = LANES
) -> list[Any]:
    """The d, or d and m, of a block of the unit at `place`, which has this header."""
    if format not in BLOCKS or BLOCKS[format].blocks == 1:
        return header
    begin = builder.mul(builder.mul(block, I64(len(header))), I64(lanes))
    ats = [BLOCKS[format].scales_at * lanes + i * lanes for i in range(len(header))]
    places = [builder.gep(place, [builder.add(begin, I64(at))]) for at in ats]
    numbers = [builder.sitofp(load(builder, I8, at, lanes), header[0].type) for at in places]
    return [builder.fmul(*pair) for pair in zip(header, numbers, strict=True)]


def digits_of(builder: Any, bits: int, rows: list[Any]) -> list[Any]:
    """The q of several inputs, a vector of bytes for each, from rows of bytes that hold them."""
    if bits == 8:
        return rows
    kind, above = rows[0].type, bits - 4

    def everywhere(number: int) -> Any:
        return ir.Constant(kind, [number] * kind.count)

    lows = rows[:-1] if above else rows
    digits = [builder.and_(row, everywhere(15)) for row in lows]
    digits += [builder.lshr(row, everywhere(4)) for row in lows]
    for number, digit in enumerate(digits if above else ()):
        left = 4 - above * number
        move = builder.shl if left > 0 else builder.lshr
        high = builder.and_(move(rows[-1], everywhere(abs(left))), everywhere((1 << bits) - 16))
        digits[number] = builder.or_(digit, high)
    return digits


def read_half(builder: Any, place: Any) -> Any:
    """LANES float16 as float32; by moving bits where there is no instruction for it."""
    if READS_HALVES:
        return builder.fpext(load(builder, F16, place), vector(F32))
    bits = builder.zext(load(builder, I16, place), vector(I32))
    sign = builder.shl(builder.and_(bits, spread(builder, I32(0x8000))), spread(builder, I32(16)))
    rest = builder.shl(builder.and_(bits, spread(builder, I32(0x7FFF))), spread(builder, I32(13)))
    scale = spread(builder, F32(2.0**112))  # the exponents count from 15 and from 127
    size = builder.fmul(builder.bitcast(rest, vector(F32)), scale)
    return builder.bitcast(builder.or_(builder.bitcast(size, vector(I32)), sign), vector(F32))


def read_row(builder: Any, format: Format, place: Any, scales: list[Any]) -> list[Any]:
    """One vector of float32 weights for each input of a row."""
    if format is Format.FLOAT32:
        return [load(builder, F32, place)]
    if format is Format.BFLOAT16:
        bits = builder.zext(load(builder, I16, place), vector(I32))
        return [builder.bitcast(builder.shl(bits, spread(builder, I32(16))), vector(F32))]
    if format is Format.FLOAT16:
        return [read_half(builder, place)]
    places = [builder.gep(place, [I64(at)]) for at in range(0, ROW[format], LANES)]
    digits = digits_of(builder, BLOCKS[format].bits, [load(builder, I8, at) for at in places])
    if format is Format.BLOCK6K:
        zero = ir.Constant(digits[0].type, [ZERO_6K] * LANES)
        digits = [builder.sub(digit, zero) for digit in digits]
    floats = [builder.sitofp(digit, vector(F32)) for digit in digits]
    if len(scales) == 1:
        return [builder.fmul(q, scales[0]) for q in floats]
    return [multiply_add(builder, q, *scales) for q in floats]
