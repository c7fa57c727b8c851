"""How the weights of a panel lie in memory, and the instructions that make float32 of them.

A panel is LANES outputs by all inputs.  It is a sequence of blocks; a block is a header and rows,
and a row holds LANES weights of one input, or of two.

    FLOAT32, BFLOAT16,
    FLOAT16             one block, no header
    BLOCK8              blocks of 32 inputs: d, then 32 rows of 8-bit q         weight = d * q
    BLOCK6K             like BLOCK8, in blocks of 16 inputs
    BLOCK5K             blocks of 32 inputs: d and m, then 32 rows of 8-bit q   weight = d * q + m
    BLOCK4, BLOCK4K     blocks of 32 inputs: d and m, then 16 rows of two 4-bit q, the first in
                        the low bits                                            weight = d * q + m

Where the processor adds up products of bytes, blocks lie as `limb_tile` says instead.

d and m are float16, in formats whose names end in K float32.  d * q needs at most 22 bits of a
float32's 24, so that sum is rounded once.
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
    BLOCK4 = 6  # this and the next have weights of 4 bits
    BLOCK4K = 7


class Blocks(NamedTuple):
    """The layout of one output of a block."""

    inputs: int
    header: int  # numbers: d, or d and m
    header_bytes: int  # of each number
    bits: int  # of a q

    @property
    def num_bytes(self) -> int:
        """The size of one output of a block."""
        return self.header * self.header_bytes + self.inputs * self.bits // 8


BLOCKS = {
    Format.BLOCK8: Blocks(BLOCK, 1, 2, 8),
    Format.BLOCK6K: Blocks(BLOCK // 2, 1, 4, 8),
    Format.BLOCK5K: Blocks(BLOCK, 2, 4, 8),
    Format.BLOCK4: Blocks(BLOCK, 2, 2, 4),
    Format.BLOCK4K: Blocks(BLOCK, 2, 4, 4),
}
SIGNED = (Format.BLOCK8, Format.BLOCK6K)  # formats with negative q; in the others q begins at 0
HEADER = dict.fromkeys(Format, 0) | {
    format: LANES * about.header * about.header_bytes for format, about in BLOCKS.items()
}
ROW = dict.fromkeys(BLOCKS, LANES) | {
    Format.FLOAT32: 4 * LANES,
    Format.BFLOAT16: 2 * LANES,
    Format.FLOAT16: 2 * LANES,
}
INPUTS_PER_ROW = {format: 2 if format >= Format.BLOCK4 else 1 for format in Format}

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
    """The header of a block, d or d and m, as float32 vectors (LANES,)."""
    if format not in BLOCKS:
        return []
    _, count, size, _ = BLOCKS[format]
    places = [builder.gep(place, [I64(size * LANES * i)]) for i in range(count)]
    if size == 4:
        return [load(builder, F32, place) for place in places]
    return [read_half(builder, place) for place in places]


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


def read_row(builder: Any, format: Format, place: Any, header: list[Any]) -> list[Any]:
    """One vector of float32 weights for each input of a row."""
    if format is Format.FLOAT32:
        return [load(builder, F32, place)]
    if format is Format.BFLOAT16:
        bits = builder.zext(load(builder, I16, place), vector(I32))
        return [builder.bitcast(builder.shl(bits, spread(builder, I32(16))), vector(F32))]
    if format is Format.FLOAT16:
        return [read_half(builder, place)]
    digits = [load(builder, I8, place)]
    if BLOCKS[format].bits == 4:
        both = builder.zext(digits[0], vector(I32))
        low = builder.and_(both, spread(builder, I32(15)))
        digits = [low, builder.lshr(both, spread(builder, I32(4)))]
    floats = [builder.sitofp(digit, vector(F32)) for digit in digits]
    if len(header) == 1:
        return [builder.fmul(q, header[0]) for q in floats]
    return [multiply_add(builder, q, header[0], header[1]) for q in floats]
