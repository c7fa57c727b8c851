"""Activations as whole numbers, for processors that add up products of bytes.

A block of 32 activations becomes 32 fixed-point numbers of three signed bytes each, its limbs, and
one scale, a power of two.  The largest of a block keeps 22 bits; a float32 has 24.  Products of
limbs and few-bit weights are whole numbers, and so is their sum over a block: it is exact in any
order.  Only the sum over blocks is rounded, and it has one order (`limb_tile`).

A drafter only guesses, and runs before every pass: its activations have one limb, which takes a
third of the products.

A cut block is 32 bytes of the highest limbs, 32 of the middle, 32 of the lowest, then two float32,
the scale and the sum of the 32 whole numbers.  A block with a NaN or an infinity has the scale NaN,
so that every output it reaches is NaN.

Where signed weights are stored higher, six int32 follow: -OFFSET times the sum of the highest limbs
and -OFFSET times the sum of the numbers that the lower limbs make; then -ZERO_6K times the same
sums of the first 16 inputs and of the last 16, which blocks of BLOCK6K meet. Sums that begin with
these come out as if weights were not higher.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from llvmlite import ir
from numba import types

from forerun.lean.dots import DOTS, OFFSET, Dots
from forerun.lean.formats import BLOCK, BYTE, F32, I8, I32, I64, ZERO_6K, declare
from forerun.lean.jit import intrinsic
from forerun.lean.tile import address

ROUND = 1.5 * 2.0**23  # adding it rounds a float32 to a whole number
ROUND_BITS = 0x4B400000  # of that float32
NAN_BITS = 0x7FC00000
NOT_FINITE = 255  # the exponent of NaN and infinity

FLOATS, WORDS, BYTES = (ir.VectorType(number, BLOCK) for number in (F32, I32, I8))


class Cut(NamedTuple):
    """How activations are cut for one kind of instruction, and the layout of a cut block."""

    dots: Dots = DOTS
    limbs: int = 3  # bytes of an activation

    @property
    def bits(self) -> int:
        """The number of bits of the whole numbers: none exceeds 2**bits. If there is only one limb,
        no lower limb carries into it, so it has one bit more; if rounding gives 128, that becomes
        127."""
        return 7 if self.limbs == 1 else 8 * self.limbs - 2

    @property
    def low_bits(self) -> int:
        """The number of bits of all limbs but the highest."""
        return 8 * (self.limbs - 1)

    @property
    def middle(self) -> int:
        """The number that is added to make the lower limbs positive: 128 in each of them."""
        return sum(128 << 8 * limb for limb in range(self.limbs - 1))

    @property
    def scale_at(self) -> int:
        """The offset of the scale in a cut block, in bytes: it follows the limbs."""
        return self.limbs * BLOCK

    def starts_at(self, number: int) -> int:
        """The offset, in bytes, of the two int32 numbers that sums begin with.

        number: 0 for sums over all inputs; 1 and 2 for those over the first and the last half.
        """
        return self.scale_at + 8 + 8 * number

    @property
    def num_bytes(self) -> int:
        """The size of a cut block."""
        return self.starts_at(3) if self.dots.is_offset else self.starts_at(0)


FINE, COARSE = Cut(), Cut(limbs=1)


def cut_block_by(cut: Cut) -> Callable[..., Any]:
    """Make the function that cuts a block of activations."""

    @intrinsic
    def cut_block(context: Any, x: Any, x_at: Any, limbs: Any, limbs_at: Any) -> Any:
        """Write the limbs of the 32 float32 from `x_at` on to the bytes from `limbs_at` on."""
        signature = types.void(x, types.intp, limbs, types.intp)

        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            x = address(context, builder, signature.args[0], values[0], values[1])
            out = address(context, builder, signature.args[2], values[2], values[3])
            x = builder.load(builder.bitcast(x, FLOATS.as_pointer()), align=4)
            _cut(builder, cut, x, out)
            return context.get_dummy_value()

        return signature, generate

    return cut_block


cut_block_fine = cut_block_by(FINE)
cut_block_coarse = cut_block_by(COARSE)


def _cut(builder: Any, cut: Cut, x: Any, out: Any) -> None:
    """Write the instructions that cut 32 float32 at `x` into a cut block at `out`."""
    up, scale = _powers(builder, cut.bits, x)
    numbers = _whole_numbers(builder, cut.middle, x, up)
    if cut.limbs == 1:
        least = declare(builder, WORDS, [WORDS] * 2, f"llvm.smin.v{BLOCK}i32")
        numbers = builder.call(least, [numbers, constant(WORDS, 127)])
    for limb in range(cut.limbs):
        part = builder.trunc(builder.lshr(numbers, constant(WORDS, 8 * limb)), BYTES)
        if limb < cut.limbs - 1:
            part = builder.xor(part, constant(BYTES, 128))  # subtracts the middle again
        _write(builder, part, out, (cut.limbs - 1 - limb) * BLOCK)
    _write(builder, scale, out, cut.scale_at)
    _write(builder, builder.sitofp(_total(builder, cut, numbers), F32), out, cut.scale_at + 4)
    if cut.dots.is_offset:
        whole = _high_and_low(builder, cut, numbers)
        first = _high_and_low(builder, cut, _first_half(builder, numbers))
        last = [builder.sub(a, b) for a, b in zip(whole, first, strict=True)]
        for number, part in enumerate((whole, first, last)):
            for word, total in enumerate(part):
                start = builder.mul(total, I32(-ZERO_6K if number else -OFFSET))
                _write(builder, start, out, cut.starts_at(number) + 4 * word)


def _high_and_low(builder: Any, cut: Cut, numbers: Any) -> list[Any]:
    """The sum of the highest limbs, and the sum of the numbers that the lower limbs form."""
    high = _sum(builder, builder.ashr(numbers, constant(numbers.type, cut.low_bits)))
    low = builder.sub(_total(builder, cut, numbers), builder.shl(high, I32(cut.low_bits)))
    return [high, low]


def _first_half(builder: Any, numbers: Any) -> Any:
    lanes = ir.Constant(ir.VectorType(I32, BLOCK // 2), list(range(BLOCK // 2)))
    return builder.shuffle_vector(numbers, ir.Constant(numbers.type, ir.Undefined), lanes)


def _total(builder: Any, cut: Cut, numbers: Any) -> Any:
    """The sum of numbers after subtracting the middle from each."""
    return builder.sub(_sum(builder, numbers), I32(numbers.type.count * cut.middle))


def _sum(builder: Any, numbers: Any) -> Any:
    name = f"llvm.vector.reduce.add.v{numbers.type.count}i32"
    return builder.call(declare(builder, I32, [numbers.type], name), [numbers])


def _powers(builder: Any, bits: int, x: Any) -> tuple[Any, Any]:
    """Return the power of two that scales the largest number of a block to just below 2**bits, and
    its inverse."""
    sizes = builder.and_(builder.bitcast(x, WORDS), constant(WORDS, 0x7FFFFFFF))
    maximum = declare(builder, I32, [WORDS], f"llvm.vector.reduce.umax.v{BLOCK}i32")
    exponent = builder.lshr(builder.call(maximum, [sizes]), I32(23))
    # For blocks far below any activation, both powers are kept within the range of a float32.
    is_low = builder.icmp_unsigned("<", exponent, I32(bits))
    exponent = builder.select(is_low, I32(bits), exponent)
    up = builder.shl(builder.sub(I32(253 + bits), exponent), I32(23))
    down = builder.shl(builder.sub(exponent, I32(bits - 1)), I32(23))
    is_finite = builder.icmp_unsigned("<", exponent, I32(NOT_FINITE))
    down = builder.select(is_finite, down, I32(NAN_BITS))
    return builder.bitcast(up, F32), builder.bitcast(down, F32)


def _whole_numbers(builder: Any, middle: int, x: Any, up: Any) -> Any:
    """Return the whole numbers nearest to x * up, with `middle` added."""
    nothing = ir.Constant(FLOATS, ir.Undefined)
    first = builder.insert_element(nothing, up, I32(0))
    x = builder.fmul(x, same(builder, first, 0, BLOCK))
    x = builder.fadd(x, constant(FLOATS, ROUND))
    return builder.sub(builder.bitcast(x, WORDS), constant(WORDS, ROUND_BITS - middle))


def constant(kind: Any, value: Any) -> Any:
    """A vector with one number in all lanes."""
    return ir.Constant(kind, [value] * kind.count)


def same(builder: Any, vector: Any, lane: int, count: int) -> Any:
    """A vector of `count` lanes, each equal to one lane of a vector."""
    nothing = ir.Constant(vector.type, ir.Undefined)
    lanes = ir.Constant(ir.VectorType(I32, count), [lane] * count)
    return builder.shuffle_vector(vector, nothing, lanes)


def _write(builder: Any, value: Any, place: Any, offset: int) -> None:
    place = builder.gep(builder.bitcast(place, BYTE), [I64(offset)])
    builder.store(value, builder.bitcast(place, value.type.as_pointer()), align=1)
