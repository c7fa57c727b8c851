"""The one inner loop: a few rows times a panel, with all sums in registers.

    y[i, :] = sum over k of x[i, k] * w[k, :]      i < count <= TOKENS, w[k, :] is LANES wide

The panel is read once, in order; each of its vectors meets every row while it is in a register.
Linear layers, attention scores and attention averages are all this loop over different memory.
It is written as LLVM instructions, because loops over arrays leave the sums in memory.
The sum over k is sequential, so a row's result does not depend on which rows stand beside it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from llvmlite import binding, ir
from numba import config, types
from numba.core import cgutils

from forerun.lean.jit import intrinsic


class Shape(NamedTuple):
    """A block of sums that fills the vector registers and leaves room for the operands."""

    lanes: int
    tokens: int


def best_shape() -> Shape:
    """For this processor: 16 of 32 registers of 512 bits, 12 of 16 of 256, or 24 of 32 of 128."""
    features = config.CPU_FEATURES  # a user may have told Numba to hold back
    if features is None:
        try:
            features = binding.get_host_cpu_features().flatten()
        except RuntimeError:  # LLVM does not know this processor
            features = ""
    return Shape(lanes=32, tokens=8) if "+avx512f" in features else Shape(lanes=16, tokens=6)


LANES, TOKENS = best_shape()
AHEAD = 8192  # bytes from what is multiplied to what is fetched: hardware alone falls behind

I32, I64, F32 = ir.IntType(32), ir.IntType(64), ir.FloatType()
VECTOR = ir.VectorType(F32, LANES)
NOTHING = ir.Constant(VECTOR, ir.Undefined)


@intrinsic
def multiply(
    context: Any,
    x: Any,  # float32, any shape: only memory and strides matter
    x_at: Any,
    x_stride: Any,
    w: Any,  # float32 or int8
    w_at: Any,
    w_stride: Any,
    depth: Any,
    y: Any,  # float32
    y_at: Any,
    y_stride: Any,
    count: Any,  # 1 to TOKENS
) -> Any:
    """`count` rows of x, `x_stride` apart, times `depth` rows of w, `w_stride` apart, into y.

    The numbers named `_at` are where each begins in its memory, counted in elements.
    """
    n = types.intp
    signature = types.void(x, n, n, w, n, n, n, y, n, n, n)

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        x, x_at, x_stride, w, w_at, w_stride, depth, y, y_at, y_stride, count = values
        kinds = signature.args
        builder.call(
            _tile(builder.module, kinds[3].dtype == types.float32),
            [
                _place(context, builder, kinds[0], x, x_at),
                x_stride,
                _place(context, builder, kinds[3], w, w_at),
                w_stride,
                depth,
                _place(context, builder, kinds[7], y, y_at),
                y_stride,
                count,
            ],
        )
        return context.get_dummy_value()

    return signature, generate


def _place(context: Any, builder: Any, kind: Any, array: Any, offset: Any) -> Any:
    """The address of an element."""
    data = context.make_array(kind)(context, builder, array).data
    return builder.gep(data, [offset])


def _tile(module: Any, is_float: bool) -> Any:
    """The function itself, once per module however often it is called."""
    name = "forerun_tile_float32" if is_float else "forerun_tile_int8"
    if name in module.globals:
        return module.globals[name]
    number = F32 if is_float else ir.IntType(8)
    f, w = F32.as_pointer(), number.as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [f, I64, w, I64, I64, f, I64, I64])
    function = ir.Function(module, kind, name)
    function.linkage = "linkonce_odr"
    function.attributes.add("noinline")
    x, x_stride, w, w_stride, depth, y, y_stride, count = function.args
    builder = ir.IRBuilder(function.append_basic_block())
    end = function.append_basic_block()
    choice = builder.switch(count, end)
    for rows in range(1, TOKENS + 1):
        block = function.append_basic_block()
        choice.add_case(I64(rows), block)
        builder.position_at_end(block)
        sums = _loop(builder, rows, x, x_stride, w, w_stride, depth, is_float)
        for row, total in enumerate(sums):
            place = builder.gep(y, [builder.mul(y_stride, I64(row))])
            builder.store(total, builder.bitcast(place, VECTOR.as_pointer()), align=4)
        builder.branch(end)
    builder.position_at_end(end)
    builder.ret_void()
    return function


def _loop(
    builder: Any, rows: int, x: Any, x_stride: Any, w: Any, w_stride: Any, depth: Any,
    is_float: bool,
) -> list[Any]:  # fmt: skip
    """The loop over k for a fixed number of rows; the finished sums."""
    starts = [builder.gep(x, [builder.mul(x_stride, I64(row))]) for row in range(rows)]
    before = builder.block
    loop = builder.append_basic_block("loop")
    after = builder.append_basic_block("after")
    builder.branch(loop)
    builder.position_at_end(loop)
    k = builder.phi(I64)
    sums = [builder.phi(VECTOR) for _ in range(rows)]
    weights = _load_weights(builder, builder.gep(w, [builder.mul(k, w_stride)]), is_float)
    fused = _declare(builder, VECTOR, [VECTOR] * 3, f"llvm.fmuladd.v{LANES}f32")
    new = []
    for row, total in enumerate(sums):
        everywhere = _spread(builder, builder.load(builder.gep(starts[row], [k])))
        new.append(builder.call(fused, [everywhere, weights, total]))
        total.add_incoming(ir.Constant(VECTOR, [0.0] * LANES), before)
        total.add_incoming(new[row], loop)
    following = builder.add(k, I64(1))
    k.add_incoming(I64(0), before)
    k.add_incoming(following, loop)
    builder.cbranch(builder.icmp_signed("<", following, depth), loop, after)
    builder.position_at_end(after)
    return new


def _load_weights(builder: Any, place: Any, is_float: bool) -> Any:
    """One vector of the panel as float32, and a request for the cache lines that come later."""
    byte, size = ir.IntType(8).as_pointer(), 4 if is_float else 1
    fetch = _declare(builder, ir.VoidType(), [byte, I32, I32, I32], "llvm.prefetch.p0")
    for line in range(0, LANES * size, 64):
        later = builder.gep(builder.bitcast(place, byte), [I64(AHEAD + line)])
        builder.call(fetch, [later, I32(0), I32(3), I32(1)])  # to read, keep close, data
    if is_float:
        return builder.load(builder.bitcast(place, VECTOR.as_pointer()), align=4)
    small = ir.VectorType(ir.IntType(8), LANES)
    loaded = builder.load(builder.bitcast(place, small.as_pointer()), align=1)
    return builder.sitofp(loaded, VECTOR)


def _spread(builder: Any, scalar: Any) -> Any:
    """A scalar in every lane."""
    first = builder.insert_element(NOTHING, scalar, I32(0))
    zeros = ir.Constant(ir.VectorType(I32, LANES), [0] * LANES)
    return builder.shuffle_vector(first, NOTHING, zeros)


def _declare(builder: Any, result: Any, arguments: list[Any], name: str) -> Any:
    return cgutils.get_or_insert_function(builder.module, ir.FunctionType(result, arguments), name)
