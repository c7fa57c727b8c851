"""How the weights of a panel lie in memory, and the instructions that make float32 of them.

A panel is LANES outputs by all inputs.  It is a sequence of blocks; a block is a header and rows,
and a row holds LANES weights of one input, or of two.

    FLOAT32, BFLOAT16,
    FLOAT16             one block, no header
    BLOCK8              blocks of 32 inputs: d, then 32 rows of 8-bit q         weight = d * q
    BLOCK4              blocks of 32 inputs: d and m, then 16 rows of two 4-bit q, the first in
                        the low bits                                         weight = d * q + m

Where the processor adds up products of bytes, blocks lie as `limb_tile` says instead.

d and m are float16.  d * q needs 19 bits of a float32's 24, so that sum is rounded once.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from llvmlite import ir
from numba.core import cgutils

from forerun.lean.shape import LANES, READS_HALVES

BLOCK = 32  # inputs


class Format(IntEnum):
    FLOAT32 = 0
    BFLOAT16 = 1
    FLOAT16 = 2
    BLOCK8 = 3  # from here on in blocks
    BLOCK4 = 4


HEADER = {
    Format.FLOAT32: 0,
    Format.BFLOAT16: 0,
    Format.FLOAT16: 0,
    Format.BLOCK8: 2 * LANES,
    Format.BLOCK4: 4 * LANES,
}
ROW = {
    Format.FLOAT32: 4 * LANES,
    Format.BFLOAT16: 2 * LANES,
    Format.FLOAT16: 2 * LANES,
    Format.BLOCK8: LANES,
    Format.BLOCK4: LANES,
}
INPUTS_PER_ROW = {format: 2 if format is Format.BLOCK4 else 1 for format in Format}

I8, I16, I32, I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
F16, F32 = ir.HalfType(), ir.FloatType()
BYTE = I8.as_pointer()


def vector(number: Any) -> Any:
    return ir.VectorType(number, LANES)


def spread(builder: Any, scalar: Any) -> Any:
    """A scalar in every lane."""
    nothing = ir.Constant(vector(scalar.type), ir.Undefined)
    first = builder.insert_element(nothing, scalar, I32(0))
    return builder.shuffle_vector(first, nothing, ir.Constant(vector(I32), [0] * LANES))


def declare(builder: Any, result: Any, arguments: list[Any], name: str) -> Any:
    return cgutils.get_or_insert_function(builder.module, ir.FunctionType(result, arguments), name)


def multiply_add(builder: Any, a: Any, b: Any, c: Any) -> Any:
    kind = vector(F32)
    fused = declare(builder, kind, [kind] * 3, f"llvm.fmuladd.v{LANES}f32")
    return builder.call(fused, [a, b, c])


def load(builder: Any, number: Any, place: Any) -> Any:
    """LANES numbers from an address that is aligned for one of them."""
    size = {I8: 1, I16: 2, F16: 2, F32: 4}[number]
    return builder.load(builder.bitcast(place, vector(number).as_pointer()), align=size)


def fetch(builder: Any, place: Any, begin: int, count: int) -> None:
    """Ask for `count` bytes from `begin` past an address, to be close when they are needed."""
    call = declare(builder, ir.VoidType(), [BYTE, I32, I32, I32], "llvm.prefetch.p0")
    for offset in range(begin, begin + count, 64):
        later = builder.gep(place, [I64(offset)])
        builder.call(call, [later, I32(0), I32(3), I32(1)])  # to read, keep close, data


def read_header(builder: Any, format: Format, place: Any) -> list[Any]:
    """The numbers that hold for a whole block, as float32."""
    count = HEADER[format] // (2 * LANES)
    places = [builder.gep(place, [I64(2 * LANES * i)]) for i in range(count)]
    return [read_half(builder, place) for place in places]


def read_half(builder: Any, place: Any) -> Any:
    """LANES float16 as float32; without an instruction for it, by moving their bits."""
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
    bits = load(builder, I8, place)
    if format is Format.BLOCK8:
        return [builder.fmul(builder.sitofp(bits, vector(F32)), header[0])]
    bits = builder.zext(bits, vector(I32))
    digits = (
        builder.and_(bits, spread(builder, I32(15))),
        builder.lshr(bits, spread(builder, I32(4))),
    )
    floats = [builder.sitofp(digit, vector(F32)) for digit in digits]
    return [multiply_add(builder, q, header[0], header[1]) for q in floats]
