"""The tile product over pages: a few rows times all panels of a page's keys or values.

    y[i, p, :] = sum over k of x[i, k] * w[p, k, :]      i < count <= QUERIES

While a page is multiplied, the next one is prefetched line by line: it may lie anywhere, so the
hardware cannot guess it.  The sums run over k in order, as in `tile`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types

from forerun.lean.formats import (
    BYTE,
    F32,
    I32,
    I64,
    fetch,
    load,
    multiply_add,
    spread,
    vector,
)
from forerun.lean.jit import intrinsic
from forerun.lean.shape import LANES, TOKENS, is_arm
from forerun.lean.tile import address, repeat_from

STEP = 4 if is_arm() else 1
"""The number of inputs of a row that are loaded at once. ARM can multiply by any lane of a
register; other processors copy a number to all lanes when they load it."""
QUERIES = 8 if is_arm() else 12 if LANES == 32 else TOKENS
"""The most rows of a tile.  Where three or four queries share a key head, several tokens fit into
one tile, and a page is read once for all of them."""
WHOLE = TOKENS - 1 if is_arm() else QUERIES
"""The most rows of a tile that is multiplied with whole panels. On ARM, the sums of one more row
would leave no registers for the inputs, so larger tiles multiply the two halves of a panel one
after the other."""
ROW = 4 * LANES  # bytes


def multiply_pages(onto: bool) -> Callable[..., Any]:
    """Make the function that multiplies panels of pages; with `onto`, sums begin with y."""

    @intrinsic
    def multiply(
        context: Any,
        x: Any,  # float32, any shape
        x_at: Any,
        x_stride: Any,
        w: Any,  # the address of the first panel
        later: Any,  # the address of the panels to prefetch
        panel_bytes: Any,  # from one panel to the next
        num_panels: Any,
        num_rows: Any,  # of a panel
        y: Any,  # float32
        y_at: Any,
        y_stride: Any,
        count: Any,  # 1 to QUERIES
    ) -> Any:
        """Multiply `count` rows of x, which are `x_stride` apart, with panels; the results for
        panel p go to y from `y_at + p * LANES` on."""
        n = types.intp
        signature = types.void(x, n, n, n, n, n, n, n, y, n, n, n)

        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            x, x_at, x_stride, w, later, panel_bytes, num_panels, num_rows, y, y_at, *rest = values
            kinds = signature.args
            x = address(context, builder, kinds[0], x, x_at)
            y = address(context, builder, kinds[8], y, y_at)
            function = _define(builder.module, onto)
            w = builder.inttoptr(w, BYTE)
            later = builder.inttoptr(later, BYTE)
            builder.call(
                function, [x, x_stride, w, later, panel_bytes, num_panels, num_rows, y, *rest]
            )
            return context.get_dummy_value()

        return signature, generate

    return multiply


multiply_keys = multiply_pages(onto=False)
multiply_values_onto = multiply_pages(onto=True)


def _define(module: Any, onto: bool) -> Any:
    """The LLVM function, which a module contains once however often it is called."""
    name = f"forerun_multiply_pages{'_onto' * onto}"
    if name in module.globals:
        return module.globals[name]
    floats = F32.as_pointer()
    arguments = [floats, I64, BYTE, BYTE, I64, I64, I64, floats, I64, I64]
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), arguments), name)
    function.linkage = "linkonce_odr"
    function.attributes.add("noinline")
    builder = ir.IRBuilder(function.append_basic_block())
    end = function.append_basic_block()
    choice = builder.switch(function.args[-1], end)
    for tokens in range(1, QUERIES + 1):
        block = function.append_basic_block()
        choice.add_case(I64(tokens), block)
        builder.position_at_end(block)
        _panels(builder, onto, tokens, *function.args[:-1])
        builder.branch(end)
    builder.position_at_end(end)
    builder.ret_void()
    return function


def _panels(
    builder: Any, onto: bool, tokens: int, x: Any, x_stride: Any, w: Any, later: Any,
    panel_bytes: Any, num_panels: Any, num_rows: Any, y: Any, y_stride: Any,
) -> None:  # fmt: skip
    """Write the loops over panels for a fixed number of tokens."""
    inputs = [builder.gep(x, [builder.mul(x_stride, I64(token))]) for token in range(tokens)]
    whole_steps = builder.and_(num_rows, I64(-STEP))
    lanes = LANES if tokens <= WHOLE else LANES // 2

    def part(index: Any, first: int) -> None:
        """Return the sums of a panel, from its lane `first` on."""
        out = builder.gep(y, [builder.add(builder.mul(index, I64(LANES)), I64(first))])
        outs = [builder.gep(out, [builder.mul(y_stride, I64(token))]) for token in range(tokens)]
        begin = builder.mul(index, panel_bytes)

        def rows(step: int) -> Callable[[Any, list[Any]], list[Any]]:
            def body(k: Any, sums: list[Any]) -> list[Any]:
                numbers = [_load_inputs(builder, row, k, step) for row in inputs]
                for j in range(step):
                    at = builder.add(begin, builder.mul(builder.add(k, I64(j)), I64(ROW)))
                    if first == 0:
                        fetch(builder, builder.gep(later, [at]), 0, ROW)
                    place = builder.gep(w, [builder.add(at, I64(4 * first))])
                    weights = load(builder, F32, place, lanes)
                    sums = [
                        multiply_add(builder, _lane(builder, number, j, lanes), weights, total)
                        for number, total in zip(numbers, sums, strict=True)
                    ]
                return sums

            return body

        zero = ir.Constant(vector(F32, lanes), [0.0] * lanes)
        sums = [load(builder, F32, place, lanes) if onto else zero for place in outs]
        sums = repeat_from(builder, I64(0), whole_steps, STEP, sums, rows(STEP))
        if STEP > 1:
            sums = repeat_from(builder, whole_steps, num_rows, 1, sums, rows(1))
        for place, total in zip(outs, sums, strict=True):
            builder.store(total, builder.bitcast(place, total.type.as_pointer()), align=4)

    def panel(index: Any, _: list[Any]) -> list[Any]:
        for first in range(0, LANES, lanes):
            part(index, first)
        return []

    repeat_from(builder, I64(0), num_panels, 1, [], panel)


def _load_inputs(builder: Any, row: Any, k: Any, step: int) -> Any:
    """Load `step` numbers of a row, from the k-th on."""
    place = builder.gep(row, [k])
    if step == 1:
        return builder.load(place)
    return builder.load(builder.bitcast(place, ir.VectorType(F32, step).as_pointer()), align=4)


def _lane(builder: Any, numbers: Any, index: int, lanes: int) -> Any:
    """Return a vector with one of the numbers in all lanes."""
    if numbers.type == F32:
        return spread(builder, numbers, lanes)
    nothing = ir.Constant(numbers.type, ir.Undefined)
    places = ir.Constant(vector(I32, lanes), [index] * lanes)
    return builder.shuffle_vector(numbers, nothing, places)
