"""The instructions that add up products of bytes, as each processor has them.

total[i] += w[4 * i] * x[4 * i] + ... + w[4 * i + 3] * x[4 * i + 3]

x, the limbs of activations, are signed. w, the weights, are signed on ARM. They are unsigned on
x86, so signed weights are stored there with OFFSET added; the sums start with numbers that undo
this (see `limbs`).

Older processors of x86 make sums of two products, in 16 bits.  A block of 32 inputs adds 16
products to each, of 4-bit weights at most 16 * 15 * 128 = 30,720, which fits; neighbours are added
up after that.  Of 8-bit weights even two need not fit: these are multiplied as floats there, and so
are weights of 5 and 6 bits.

The whole numbers that come out are the same everywhere.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from llvmlite import ir

from forerun.lean.formats import I8, I16, I32, declare
from forerun.lean.shape import DOT_PRODUCTS, HAS_DOT_PRODUCTS

FOUR = 4  # products in each sum
OFFSET = 128  # of signed weights where weights are unsigned


class Dots(NamedTuple):
    """One processor's instructions, and how they are best used."""

    name: str
    sums: int  # made by one instruction
    call: str  # LLVM's name for it; "" for plain instructions that every processor has
    join: str = ""  # LLVM's name of the instruction that adds up neighbours, for narrow sums
    is_narrow: bool = False  # each sum has two products in 16 bits
    is_signed: bool = False  # weights are signed
    features: str = ""  # features of the processor that LLVM does not find by itself
    words_read: int = 1  # 32-bit words of activations that one load reads
    strips: int = 1  # strips of a panel side by side; one load of an activation serves all of them
    pairs: tuple[tuple[int, int], ...] = ()  # (bits of weights, tokens) for which 2 strips are best
    abreast: int = 3  # most tokens at a time whose limbs have sums of their own (see `limb_tile`)
    in_turn: int = 100  # tokens of a tile from which on the limbs of each take turns in one sum
    in_turn_of_6: int = 100  # the same for weights of 6 bits, which take more registers
    most_tokens: int = 8  # in a tile; with more, sums leave the registers
    best_tokens: int = 6  # in each tile of many, for the least time per token

    @property
    def is_offset(self) -> bool:
        """Whether signed weights are stored with OFFSET added."""
        return not self.is_signed and not self.is_narrow


SDOT = Dots(
    "sdot", 4, "llvm.aarch64.neon.sdot.v4i32.v16i8", is_signed=True, words_read=4,
    features="+fp-armv8,+neon,+dotprod", pairs=((4, 3), (8, 2)), in_turn=3,
    in_turn_of_6=3,
)  # fmt: skip
VNNI_512 = Dots(
    "vnni512", 16, "llvm.x86.avx512.vpdpbusd.512", strips=2, in_turn=5, in_turn_of_6=4,
    most_tokens=6,
)  # fmt: skip
VNNI_256 = Dots("vnni256", 8, "llvm.x86.avx512.vpdpbusd.256")
MADD_512 = Dots(
    "madd512", 16, "llvm.x86.avx512.pmaddubs.w.512", "llvm.x86.avx512.pmaddw.d.512",
    is_narrow=True, abreast=4, best_tokens=8,
)  # fmt: skip
MADD_256 = Dots("madd256", 8, "llvm.x86.avx2.pmadd.ub.sw", "llvm.x86.avx2.pmadd.wd", is_narrow=True)


def plain(dots: Dots) -> Dots:
    """Instructions with the same results and layout, composed of those that every processor has;
    they are slow."""
    return dots._replace(name=f"plain_{dots.name}", call="", join="", features="")


KINDS = {dots.name: dots for dots in (SDOT, VNNI_512, VNNI_256, MADD_512, MADD_256)}
KINDS |= {dots.name: dots for dots in map(plain, tuple(KINDS.values()))}
DOTS = KINDS.get(DOT_PRODUCTS, plain(SDOT))
"""The dot-product instructions of this processor; if it has none, a stand-in with which nothing is
multiplied."""
LIMBS_4 = HAS_DOT_PRODUCTS
LIMBS_8 = HAS_DOT_PRODUCTS and not DOTS.is_narrow
"""Whether blocks of weights wider than 4 bits are multiplied with limbs (LIMBS_4: the same for
4-bit weights). If not, they are multiplied as floats."""


def nothing_yet(dots: Dots) -> Any:
    """A vector of zeros, with which the sums of a block begin."""
    kind = ir.VectorType(*(I16, 2 * dots.sums) if dots.is_narrow else (I32, dots.sums))
    return ir.Constant(kind, [0] * kind.count)


def dot(builder: Any, dots: Dots, total: Any, weights: Any, x: Any) -> Any:
    """Return `total` plus the products of bytes of weights and of x. Both have FOUR * sums bytes,
    and four products go to each sum."""
    if not dots.call:
        return builder.call(_plain_function(builder.module, dots), [total, weights, x])
    kind = total.type
    if dots.is_narrow:
        pairs = declare(builder, kind, [weights.type, x.type], dots.call)
        return builder.add(total, builder.call(pairs, [weights, x]))
    operands = [weights, x]
    if not dots.is_signed:  # on x86 LLVM calls four bytes a number
        operands = [builder.bitcast(operand, kind) for operand in operands]
    fours = declare(builder, kind, [kind, *(operand.type for operand in operands)], dots.call)
    return builder.call(fours, [total, *operands])


def finished(builder: Any, dots: Dots, total: Any) -> Any:
    """The sums of a block as int32 (sums,); narrow sums are added up in pairs."""
    if not dots.is_narrow:
        return total
    words = ir.VectorType(I32, dots.sums)
    if dots.join:
        neighbours = declare(builder, words, [total.type] * 2, dots.join)
        return builder.call(neighbours, [total, ir.Constant(total.type, [1] * total.type.count)])
    return _add_up(builder, builder.sext(total, ir.VectorType(I32, 2 * dots.sums)), 2)


def _plain_function(module: Any, dots: Dots) -> Any:
    """A function that does what `dot` does, without special instructions. It is called and not
    inlined, because a tile makes hundreds of these sums and would take long to compile."""
    name = f"forerun_{dots.name}"
    if name in module.globals:
        return module.globals[name]
    kind, row = nothing_yet(dots).type, ir.VectorType(I8, FOUR * dots.sums)
    function = ir.Function(module, ir.FunctionType(kind, [kind, row, row]), name)
    function.linkage = "linkonce_odr"
    function.attributes.add("noinline")
    builder = ir.IRBuilder(function.append_basic_block())
    total, weights, x = function.args
    wide = ir.VectorType(I32, FOUR * dots.sums)
    weights = (builder.sext if dots.is_signed else builder.zext)(weights, wide)
    products = builder.mul(weights, builder.sext(x, wide))
    sums = _add_up(builder, products, wide.count // kind.count)
    if dots.is_narrow:
        for bound, name in ((32767, "smin"), (-32768, "smax")):  # as the instruction saturates
            limit = declare(builder, sums.type, [sums.type] * 2, f"llvm.{name}.v{kind.count}i32")
            sums = builder.call(limit, [sums, ir.Constant(sums.type, [bound] * kind.count)])
        sums = builder.trunc(sums, kind)
    builder.ret(builder.add(total, sums))
    return function


def _add_up(builder: Any, numbers: Any, count: int) -> Any:
    """Add up each group of `count` neighbouring numbers of a vector."""
    nothing, total = ir.Constant(numbers.type, ir.Undefined), None
    for first in range(count):
        lanes = list(range(first, numbers.type.count, count))
        mask = ir.Constant(ir.VectorType(I32, len(lanes)), lanes)
        part = builder.shuffle_vector(numbers, nothing, mask)
        total = part if total is None else builder.add(total, part)
    return total
