"""The inner loop of linear layers: a few rows times a panel, with all sums in registers.

    y[i, :] = sum over k of x[i, k] * w[k, :]      i < count <= TOKENS, w[k, :] is LANES wide

The panel is read once, in order; each of its vectors is multiplied with every row while it is in a
register.  `page_tile` is the form of this loop for attention.
It is written as LLVM instructions, because loops over arrays leave the sums in memory.
The sum over k is sequential, so a row's result depends neither on which rows stand beside it nor
on how the weights are kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types

from forerun.lean.formats import (
    BLOCKS,
    BYTE,
    F32,
    I64,
    INPUTS_PER_ROW,
    ROW,
    Format,
    fetch,
    load,
    multiply_add,
    read_header,
    read_row,
    read_scales,
    spread,
    vector,
)
from forerun.lean.jit import intrinsic
from forerun.lean.shape import LANES, TOKENS, is_arm

AHEAD = 2048 if is_arm() else 16384  # bytes by which prefetching is ahead of multiplying: hardware
# alone falls behind, the more so where weights have left the cache since the last pass


def multiply_by(format: Format, onto: bool = False) -> Callable[..., Any]:
    """Make the function that multiplies rows with weights of one format; with `onto`, sums begin
    with y."""

    @intrinsic
    def multiply(
        context: Any,
        x: Any,  # float32, any shape: only memory and strides matter
        x_at: Any,
        x_stride: Any,
        w: Any,
        w_at: Any,  # in elements of w
        depth: Any,  # inputs, in whole units
        y: Any,  # float32
        y_at: Any,
        y_stride: Any,
        count: Any,  # 1 to TOKENS
    ) -> Any:
        """Multiply `count` rows of x, which are `x_stride` apart, with the panel that begins at
        `w_at`; the results go to y."""
        n = types.intp
        signature = types.void(x, n, n, w, n, n, y, n, n, n)

        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            x, x_at, x_stride, w, w_at, depth, y, y_at, *rest = values
            kinds = signature.args
            x = address(context, builder, kinds[0], x, x_at)
            w = builder.bitcast(address(context, builder, kinds[3], w, w_at), BYTE)
            y = address(context, builder, kinds[6], y, y_at)
            function = _define(builder.module, format, onto)
            builder.call(function, [x, x_stride, w, depth, y, *rest])
            return context.get_dummy_value()

        return signature, generate

    return multiply


multiply_float32 = multiply_by(Format.FLOAT32)
multiply_float32_onto = multiply_by(Format.FLOAT32, onto=True)
multiply_bfloat16 = multiply_by(Format.BFLOAT16)
multiply_float16 = multiply_by(Format.FLOAT16)
multiply_block8 = multiply_by(Format.BLOCK8)
multiply_block6k = multiply_by(Format.BLOCK6K)
multiply_block5k = multiply_by(Format.BLOCK5K)
multiply_block5 = multiply_by(Format.BLOCK5)
multiply_block4 = multiply_by(Format.BLOCK4)
multiply_block4k = multiply_by(Format.BLOCK4K)


def address(context: Any, builder: Any, kind: Any, array: Any, offset: Any) -> Any:
    """The address of an element of an array.  kind: Numba's type of the array."""
    return builder.gep(context.make_array(kind)(context, builder, array).data, [offset])


def _define(module: Any, format: Format, onto: bool) -> Any:
    """The LLVM function of this format, which a module contains once however often it is called."""
    name = f"forerun_multiply_{format.name.lower()}{'_onto' * onto}"
    if name in module.globals:
        return module.globals[name]
    floats = F32.as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [floats, I64, BYTE, I64, floats, I64, I64])
    function = ir.Function(module, kind, name)
    function.linkage = "linkonce_odr"
    function.attributes.add("noinline")
    *operands, y, y_stride, count = function.args
    builder = ir.IRBuilder(function.append_basic_block())
    end = function.append_basic_block()
    choice = builder.switch(count, end)
    for tokens in range(1, TOKENS + 1):
        block = function.append_basic_block()
        choice.add_case(I64(tokens), block)
        builder.position_at_end(block)
        places = [builder.gep(y, [builder.mul(y_stride, I64(token))]) for token in range(tokens)]
        zero = ir.Constant(vector(F32), [0.0] * LANES)
        sums = [load(builder, F32, place) if onto else zero for place in places]
        totals = _loops(builder, format, sums, *operands)
        for place, total in zip(places, totals, strict=True):
            builder.store(total, builder.bitcast(place, vector(F32).as_pointer()), align=4)
        builder.branch(end)
    builder.position_at_end(end)
    builder.ret_void()
    return function


def _loops(
    builder: Any, format: Format, sums: list[Any], x: Any, x_stride: Any, w: Any, depth: Any
) -> list[Any]:
    """Write the loops over a panel for a fixed number of tokens; returns the sums."""
    starts = [builder.gep(x, [builder.mul(x_stride, I64(token))]) for token in range(len(sums))]

    def row(k: Any, place: Any, scales: list[Any], sums: list[Any]) -> list[Any]:
        fetch(builder, place, AHEAD, ROW[format])
        for offset, weights in enumerate(read_row(builder, format, place, scales)):
            at = builder.add(k, I64(offset))
            inputs = [builder.load(builder.gep(start, [at])) for start in starts]
            sums = [
                multiply_add(builder, spread(builder, value), weights, total)
                for value, total in zip(inputs, sums, strict=True)
            ]
        return sums

    return repeat_rows(builder, format, w, depth, sums, row)


def repeat_rows(
    builder: Any, format: Format, w: Any, depth: Any, values: list[Any],
    body: Callable[[Any, Any, list[Any], list[Any]], list[Any]],
) -> list[Any]:  # fmt: skip
    """Write the loops over units, blocks and rows of a panel at `w`:
    `values = body(first input, address, scales, values)` for each row."""
    about, per_row = BLOCKS.get(format), INPUTS_PER_ROW[format]
    count = about.blocks if about else 1  # blocks of a unit
    num_units = builder.sdiv(depth, I64(about.unit)) if about else I64(1)
    num_rows = I64(about.inputs // per_row) if about else depth

    def unit(index: Any, values: list[Any]) -> list[Any]:
        size = LANES * about.num_bytes if about else 0
        begin = builder.gep(w, [builder.mul(index, I64(size))])
        rows = builder.gep(begin, [I64(LANES * about.header if about else 0)])
        before = builder.mul(index, builder.mul(num_rows, I64(count)))
        header = read_header(builder, format, begin)

        def block(number: Any, values: list[Any]) -> list[Any]:
            scales = read_scales(builder, format, begin, number, header)

            def row(index: Any, values: list[Any]) -> list[Any]:
                within = builder.add(builder.mul(number, num_rows), index)
                place = builder.gep(rows, [builder.mul(within, I64(ROW[format]))])
                k = builder.mul(builder.add(before, within), I64(per_row))
                return body(k, place, scales, values)

            return repeat(builder, num_rows, values, row)

        return block(I64(0), values) if count == 1 else repeat(builder, I64(count), values, block)

    return repeat(builder, num_units, values, unit)


def repeat(
    builder: Any, times: Any, values: list[Any], body: Callable[[Any, list[Any]], list[Any]]
) -> list[Any]:
    """Write the loop `values = body(i, values)` for i below `times`, which is at least 1."""
    before = builder.block
    loop = builder.append_basic_block("loop")
    after = builder.append_basic_block("after")
    builder.branch(loop)
    builder.position_at_end(loop)
    index = builder.phi(I64)
    carried = [builder.phi(value.type) for value in values]
    new = body(index, carried)
    following = builder.add(index, I64(1))
    index.add_incoming(I64(0), before)
    index.add_incoming(following, builder.block)
    for phi, old, value in zip(carried, values, new, strict=True):
        phi.add_incoming(old, before)
        phi.add_incoming(value, builder.block)
    builder.cbranch(builder.icmp_signed("<", following, times), loop, after)
    builder.position_at_end(after)
    return new


def repeat_from(
    builder: Any, begin: Any, end: Any, step: int, values: list[Any],
    body: Callable[[Any, list[Any]], list[Any]],
) -> list[Any]:  # fmt: skip
    """Write the loop `values = body(i, values)` for i in range(begin, end, step), which may be
    empty; the values are carried in registers."""
    before = builder.block
    head = builder.append_basic_block("head")
    inside = builder.append_basic_block("inside")
    after = builder.append_basic_block("after")
    builder.branch(head)
    builder.position_at_end(head)
    index = builder.phi(I64)
    carried = [builder.phi(value.type) for value in values]
    builder.cbranch(builder.icmp_signed("<", index, end), inside, after)
    builder.position_at_end(inside)
    new = body(index, carried)
    index.add_incoming(begin, before)
    index.add_incoming(builder.add(index, I64(step)), builder.block)
    for phi, old, value in zip(carried, values, new, strict=True):
        phi.add_incoming(old, before)
        phi.add_incoming(value, builder.block)
    builder.branch(head)
    builder.position_at_end(after)
    return carried
