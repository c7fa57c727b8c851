"""Activations as whole numbers, for processors that add up products of bytes.

A block of 32 activations becomes 32 fixed-point numbers of three signed bytes each, its limbs, and
one scale, a power of two.  The largest of a block keeps 22 bits; a float32 has 24.  Products of
limbs and few-bit weights are whole numbers, and so is their sum over a block: it is exact in any
order.  Only what joins the blocks is rounded, and that happens in one order (`limb_tile`).

A cut block is CUT_BYTES: 32 bytes of the highest limbs, 32 of the middle, 32 of the lowest, then
two float32, the scale and the sum of the 32 whole numbers.  A block with a NaN or an infinity has
the scale NaN, so that every output it reaches is NaN.

Where signed weights are kept OFFSET higher, six int32 follow: -OFFSET times the sum of the highest
limbs, and of what the lower two make, for all 32 inputs, the first 16 and the last 16.  Sums that
begin with these are those of the weights proper.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types

from forerun.lean.dots import DOTS, OFFSET, Dots
from forerun.lean.formats import BLOCK, BYTE, F32, I8, I32, I64, declare
from forerun.lean.jit import intrinsic
from forerun.lean.tile import address

LIMBS = 3  # bytes of an activation
BITS = 8 * LIMBS - 2  # a whole number is at most 2**BITS
LOW_BITS = 8 * (LIMBS - 1)  # those of the lower limbs

MIDDLE = sum(128 << 8 * limb for limb in range(LIMBS - 1))  # makes the lower limbs positive
ROUND = 1.5 * 2.0**23  # added to a float32, it leaves no room for a fraction
ROUND_BITS = 0x4B400000  # of that float32
NAN_BITS = 0x7FC00000
NOT_FINITE = 255  # the exponent of NaN and infinity

FLOATS, WORDS, BYTES = (ir.VectorType(number, BLOCK) for number in (F32, I32, I8))


def cut_bytes(dots: Dots) -> int:
    """The size of a cut block."""
    return LIMBS * BLOCK + (32 if dots.is_offset else 8)


def cut_block_for(dots: Dots) -> Callable[..., Any]:
    """What cuts activations for one kind of instruction, for compiled code."""

    @intrinsic
    def cut_block(context: Any, x: Any, x_at: Any, limbs: Any, limbs_at: Any) -> Any:
        """Write the limbs of the 32 float32 from `x_at` on to the bytes from `limbs_at` on."""
        signature = types.void(x, types.intp, limbs, types.intp)

        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            x = address(context, builder, signature.args[0], values[0], values[1])
            out = address(context, builder, signature.args[2], values[2], values[3])
            x = builder.load(builder.bitcast(x, FLOATS.as_pointer()), align=4)
            _cut(builder, dots, x, out)
            return context.get_dummy_value()

        return signature, generate

    return cut_block


CUT_BYTES = cut_bytes(DOTS)
cut_block = cut_block_for(DOTS)


def _cut(builder: Any, dots: Dots, x: Any, out: Any) -> None:
    up, scale = _powers(builder, x)
    numbers = _whole_numbers(builder, x, up)
    for limb in range(LIMBS):
        part = builder.trunc(builder.lshr(numbers, constant(WORDS, 8 * limb)), BYTES)
        if limb < LIMBS - 1:
            part = builder.xor(part, constant(BYTES, 128))  # takes MIDDLE away again
        _write(builder, part, out, (LIMBS - 1 - limb) * BLOCK)
    total = _total(builder, numbers)
    _write(builder, scale, out, LIMBS * BLOCK)
    _write(builder, builder.sitofp(total, F32), out, LIMBS * BLOCK + 4)
    if dots.is_offset:
        whole = _high_and_low(builder, numbers)
        first = _high_and_low(builder, _first_half(builder, numbers))
        last = [builder.sub(a, b) for a, b in zip(whole, first, strict=True)]
        for number, part in enumerate((whole, first, last)):
            for word, total in enumerate(part):
                start = builder.mul(total, I32(-OFFSET))
                _write(builder, start, out, starts_at(number) + 4 * word)


def starts_at(number: int) -> int:
    """Where sums find what they begin with: 0 for those of all inputs, 1 and 2 for halves."""
    return LIMBS * BLOCK + 8 + 8 * number


def _high_and_low(builder: Any, numbers: Any) -> list[Any]:
    """The sum of the highest limbs, and that of what the lower ones make."""
    high = _sum(builder, builder.ashr(numbers, constant(numbers.type, LOW_BITS)))
    return [high, builder.sub(_total(builder, numbers), builder.shl(high, I32(LOW_BITS)))]


def _first_half(builder: Any, numbers: Any) -> Any:
    lanes = ir.Constant(ir.VectorType(I32, BLOCK // 2), list(range(BLOCK // 2)))
    return builder.shuffle_vector(numbers, ir.Constant(numbers.type, ir.Undefined), lanes)


def _total(builder: Any, numbers: Any) -> Any:
    """The sum of numbers less MIDDLE."""
    return builder.sub(_sum(builder, numbers), I32(numbers.type.count * MIDDLE))


def _sum(builder: Any, numbers: Any) -> Any:
    name = f"llvm.vector.reduce.add.v{numbers.type.count}i32"
    return builder.call(declare(builder, I32, [numbers.type], name), [numbers])


def _powers(builder: Any, x: Any) -> tuple[Any, Any]:
    """The power of two that lifts the largest of a block below 2**BITS, and its inverse."""
    sizes = builder.and_(builder.bitcast(x, WORDS), constant(WORDS, 0x7FFFFFFF))
    maximum = declare(builder, I32, [WORDS], f"llvm.vector.reduce.umax.v{BLOCK}i32")
    exponent = builder.lshr(builder.call(maximum, [sizes]), I32(23))
    # Far below any activation both powers are held where a float32 can be one.
    is_low = builder.icmp_unsigned("<", exponent, I32(BITS))
    exponent = builder.select(is_low, I32(BITS), exponent)
    up = builder.shl(builder.sub(I32(253 + BITS), exponent), I32(23))
    down = builder.shl(builder.sub(exponent, I32(BITS - 1)), I32(23))
    is_finite = builder.icmp_unsigned("<", exponent, I32(NOT_FINITE))
    down = builder.select(is_finite, down, I32(NAN_BITS))
    return builder.bitcast(up, F32), builder.bitcast(down, F32)


def _whole_numbers(builder: Any, x: Any, up: Any) -> Any:
    """The nearest whole numbers to x * up, plus MIDDLE."""
    nothing = ir.Constant(FLOATS, ir.Undefined)
    first = builder.insert_element(nothing, up, I32(0))
    x = builder.fmul(x, same(builder, first, 0, BLOCK))
    x = builder.fadd(x, constant(FLOATS, ROUND))
    return builder.sub(builder.bitcast(x, WORDS), constant(WORDS, ROUND_BITS - MIDDLE))


def constant(kind: Any, value: Any) -> Any:
    """A vector with one number in all lanes."""
    return ir.Constant(kind, [value] * kind.count)


def same(builder: Any, vector: Any, lane: int, count: int) -> Any:
    """One lane of a vector in all lanes of a vector of `count`."""
    nothing = ir.Constant(vector.type, ir.Undefined)
    lanes = ir.Constant(ir.VectorType(I32, count), [lane] * count)
    return builder.shuffle_vector(vector, nothing, lanes)


def _write(builder: Any, value: Any, place: Any, offset: int) -> None:
    place = builder.gep(builder.bitcast(place, BYTE), [I64(offset)])
    builder.store(value, builder.bitcast(place, value.type.as_pointer()), align=1)
