"""The inner loop for limbs: a few tokens times a panel of few-bit weights, by products of bytes.

    y[i, :] = sum over blocks of  scale * (d * (sum of limbs * q) + m * (sum of limbs))

The two inner sums are whole numbers and exact; the outer one runs over the blocks in order, so a
token's result does not depend on which tokens stand beside it.

A panel lies in quads: four of its outputs over all inputs, then the next four.  A block of a quad
is a header (d, and m of BLOCK4: four float16 each) and rows of 16 bytes, each of four outputs by
four inputs, which is what one instruction multiplies with four inputs of a token.  A row of BLOCK4
holds two such: four inputs in the low bits, and the four that are 16 inputs later in the high bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types

from forerun.lean.formats import BLOCK, BYTE, F16, F32, I8, I32, I64, Format, declare, fetch
from forerun.lean.jit import intrinsic
from forerun.lean.limbs import CUT_BYTES, LIMBS, constant, same
from forerun.lean.shape import LANES
from forerun.lean.tile import AHEAD, address, repeat

QUAD = 4  # outputs, and inputs too
MOST_TOKENS = 8  # in a tile: with more, sums leave the registers
BEST_TOKENS = 6  # in each tile of many: the least time for a token
QUAD_BYTES = {Format.BLOCK8: 2 * QUAD + BLOCK * QUAD, Format.BLOCK4: 4 * QUAD + BLOCK * QUAD // 2}
# How many limbs share a sum of 32 bits, the highest first.  Of BLOCK4 all do: 15 * 32 * 2**22 is
# less than 2**31.  With the 127 of BLOCK8 that would overflow.
LIMBS_PER_SUM = {Format.BLOCK8: (1, 2), Format.BLOCK4: (3,)}

QUAD_I32, QUAD_F32, QUAD_F16 = (ir.VectorType(number, QUAD) for number in (I32, F32, F16))
ROW = ir.VectorType(I8, QUAD * QUAD)


def multiply_limbs_by(format: Format) -> Callable[..., Any]:
    """The loop over a panel of one block format, for compiled code."""

    @intrinsic
    def multiply(
        context: Any,
        x: Any,  # uint8: cut blocks, any shape
        x_at: Any,
        x_stride: Any,
        w: Any,  # uint8
        w_at: Any,
        num_blocks: Any,
        y: Any,  # float32
        y_at: Any,
        y_stride: Any,
        count: Any,  # 1 to MOST_TOKENS
    ) -> Any:
        """`count` rows of limbs, `x_stride` apart, times a panel that begins at `w_at`, into y."""
        n = types.intp
        signature = types.void(x, n, n, w, n, n, y, n, n, n)

        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            x, x_at, x_stride, w, w_at, num_blocks, y, y_at, y_stride, count = values
            kinds = signature.args
            x = address(context, builder, kinds[0], x, x_at)
            w = address(context, builder, kinds[3], w, w_at)
            y = address(context, builder, kinds[6], y, y_at)
            function = _define(builder.module, format)
            builder.call(function, [x, x_stride, w, num_blocks, y, y_stride, count])
            return context.get_dummy_value()

        return signature, generate

    return multiply


multiply_limbs_block8 = multiply_limbs_by(Format.BLOCK8)
multiply_limbs_block4 = multiply_limbs_by(Format.BLOCK4)


def _define(module: Any, format: Format) -> Any:
    """The function itself, once per module however often it is called."""
    name = f"forerun_multiply_limbs_{format.name.lower()}"
    if name in module.globals:
        return module.globals[name]
    floats = F32.as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [BYTE, I64, BYTE, I64, floats, I64, I64])
    function = ir.Function(module, kind, name)
    function.linkage = "linkonce_odr"
    function.attributes.add("noinline")
    # LLVM is not told of this feature for the whole module.  llvmlite prints attributes as they
    # are, but refuses to add one that it does not know.
    set.add(function.attributes, '"target-features"="+fp-armv8,+neon,+dotprod"')
    x, x_stride, w, num_blocks, y, y_stride, count = function.args
    builder = ir.IRBuilder(function.append_basic_block())
    end = function.append_basic_block()
    choice = builder.switch(count, end)
    for tokens in range(1, MOST_TOKENS + 1):
        block = function.append_basic_block()
        choice.add_case(I64(tokens), block)
        builder.position_at_end(block)
        rows = [builder.gep(x, [builder.mul(x_stride, I64(token))]) for token in range(tokens)]
        places = [builder.gep(y, [builder.mul(y_stride, I64(token))]) for token in range(tokens)]
        _quads(builder, format, rows, w, num_blocks, places)
        builder.branch(end)
    builder.position_at_end(end)
    builder.ret_void()
    return function


def _quads(
    builder: Any, format: Format, rows: list[Any], w: Any, num_blocks: Any, places: list[Any]
) -> None:
    """A whole panel, for a fixed number of tokens."""
    size = builder.mul(num_blocks, I64(QUAD_BYTES[format]))

    def quad(index: Any, _: list[Any]) -> list[Any]:
        sums = _quad(builder, format, rows, builder.gep(w, [builder.mul(index, size)]), num_blocks)
        for place, total in zip(places, sums, strict=True):
            place = builder.gep(place, [builder.mul(index, I64(QUAD))])
            builder.store(total, builder.bitcast(place, QUAD_F32.as_pointer()), align=4)
        return []

    repeat(builder, I64(LANES // QUAD), [], quad)


def _quad(builder: Any, format: Format, rows: list[Any], w: Any, num_blocks: Any) -> list[Any]:
    """The finished sums of four outputs, one vector for each token."""

    def block(index: Any, sums: list[Any]) -> list[Any]:
        place = builder.gep(w, [builder.mul(index, I64(QUAD_BYTES[format]))])
        fetch(builder, place, AHEAD, QUAD_BYTES[format])
        header, digits = _read_block(builder, format, place)
        at = builder.mul(index, I64(CUT_BYTES))
        xs = [builder.gep(row, [at]) for row in rows]
        products = _products(builder, format, digits, xs)
        return [
            _add_block(builder, header, x, product, total)
            for x, product, total in zip(xs, products, sums, strict=True)
        ]

    return repeat(builder, num_blocks, [constant(QUAD_F32, 0.0)] * len(rows), block)


def _read_block(builder: Any, format: Format, place: Any) -> tuple[list[Any], list[Any]]:
    """The numbers that hold for a block of a quad, and its eight rows of q, four inputs each."""
    count = 2 if format is Format.BLOCK4 else 1
    halves = [_read(builder, QUAD_F16, place, 2 * QUAD * i) for i in range(count)]
    header = [builder.fpext(half, QUAD_F32) for half in halves]
    begin, step = 2 * QUAD * count, QUAD * QUAD
    digits = [_read(builder, ROW, place, at) for at in range(begin, QUAD_BYTES[format], step)]
    if format is Format.BLOCK4:
        low = [builder.and_(row, constant(ROW, 15)) for row in digits]
        digits = low + [builder.lshr(row, constant(ROW, 4)) for row in digits]
    return header, digits


def _products(builder: Any, format: Format, digits: list[Any], xs: list[Any]) -> list[Any]:
    """Sums of limbs * q over a block for each token, as float32.

    An addition waits for the one before it in the same sum, so two sums or more are kept going:
    those of several tokens, or those of the limbs of one or two.  Both ways give the same whole
    numbers.  The groups are the largest that leave the other registers alone.
    """
    size = 3 if len(xs) > 3 else 2
    products = []
    for first in range(0, len(xs), size):
        group = xs[first : first + size]
        way = _limb_by_limb if len(group) > 1 and len(xs) > 2 else _limbs_abreast
        products += way(builder, format, digits, group)
    return products


def _limb_by_limb(builder: Any, format: Format, digits: list[Any], xs: list[Any]) -> list[Any]:
    """The tokens abreast: a lower limb is added onto what the higher ones gave."""
    limb, words = 0, []
    for size in LIMBS_PER_SUM[format]:
        sums = [constant(QUAD_I32, 0)] * len(xs)
        for number in range(size):
            if number:
                sums = [_raise(builder, total) for total in sums]
            sums = _dot(builder, digits, [_limb(builder, x, limb) for x in xs], sums)
            limb += 1
        words.append(sums)
    return [_as_float(builder, format, of_token) for of_token in zip(*words, strict=True)]


def _limbs_abreast(builder: Any, format: Format, digits: list[Any], xs: list[Any]) -> list[Any]:
    """The limbs abreast too: more sums, and some additions to join them."""
    places = [_limb(builder, x, limb) for x in xs for limb in range(LIMBS)]
    sums = iter(_dot(builder, digits, places, [constant(QUAD_I32, 0)] * len(places)))
    products = []
    for _ in xs:
        words = []
        for size in LIMBS_PER_SUM[format]:
            word = next(sums)
            for _ in range(size - 1):
                word = builder.add(_raise(builder, word), next(sums))
            words.append(word)
        products.append(_as_float(builder, format, words))
    return products


def _limb(builder: Any, x: Any, limb: int) -> Any:
    """Where one limb of a block's activations lies."""
    return builder.gep(x, [I64(limb * BLOCK)])


def _raise(builder: Any, sums: Any) -> Any:
    """To where the next lower limb can be added."""
    return builder.shl(sums, constant(QUAD_I32, 8))


def _dot(builder: Any, digits: list[Any], places: list[Any], sums: list[Any]) -> list[Any]:
    """`sums` plus the products of a block's q with the limbs at each of the places."""
    name = "llvm.aarch64.neon.sdot.v4i32.v16i8"
    dot = declare(builder, QUAD_I32, [QUAD_I32, ROW, ROW], name)
    inputs: list[Any] = []
    for number, row in enumerate(digits):
        if number % QUAD == 0:
            inputs = [_read(builder, QUAD_I32, place, QUAD * number) for place in places]
        lanes = [same(builder, four, number % QUAD, QUAD) for four in inputs]
        limbs = [builder.bitcast(lane, ROW) for lane in lanes]
        sums = [builder.call(dot, [sum, row, x]) for sum, x in zip(sums, limbs, strict=True)]
    return sums


def _as_float(builder: Any, format: Format, words: Sequence[Any]) -> Any:
    """The words of a sum joined."""
    total, *rest = (builder.sitofp(word, QUAD_F32) for word in words)
    for size, word in zip(LIMBS_PER_SUM[format][1:], rest, strict=True):
        total = _fused(builder, total, constant(QUAD_F32, float(1 << 8 * size)), word)
    return total


def _add_block(builder: Any, header: list[Any], x: Any, product: Any, total: Any) -> Any:
    """`total` and what one block adds to it for one token."""
    numbers = _read(builder, ir.VectorType(F32, 2), x, LIMBS * BLOCK)
    scale, sum_of_x = (same(builder, numbers, i, QUAD) for i in (0, 1))
    product = builder.fmul(product, header[0])
    if len(header) > 1:
        product = _fused(builder, header[1], sum_of_x, product)
    return _fused(builder, product, scale, total)


def _fused(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """a * b + c, rounded once."""
    fused = declare(builder, QUAD_F32, [QUAD_F32] * 3, f"llvm.fma.v{QUAD}f32")
    return builder.call(fused, [a, b, c])


def _read(builder: Any, kind: Any, place: Any, offset: int) -> Any:
    place = builder.gep(place, [I64(offset)])
    return builder.load(builder.bitcast(place, kind.as_pointer()), align=1)
