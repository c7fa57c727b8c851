"""Weights out of scores, in one sweep over LANES numbers at a time.

Queries are scaled so that a weight is a power of two, which takes fewer steps than one of e.

The sweep is written as LLVM instructions because the sum vectorises only where reordering is
allowed, and there the rounding inside the power would be simplified away.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from forerun.lean.formats import F32, I32, I64, load, spread, vector
from forerun.lean.jit import intrinsic
from forerun.lean.loops import repeat_from
from forerun.lean.scalar import ROUND
from forerun.lean.shape import LANES
from forerun.lean.tile import address

POWERS = (
    1.0,
    0.6931472028551291,
    0.2402264791361973,
    0.05550332471025955,
    0.009618437358281494,
    0.0013398874445756748,
    0.00015353361821153282,
)
"""2**r on |r| <= 1/2 as a polynomial, to a relative error of 2e-9; the constant term is given."""
LOWEST = -125.0  # less is counted as this much


@intrinsic
def exp2_total(context: Any, x: Any, begin: Any, end: Any, top: Any) -> Any:
    """x = 2**(x - top) in place from `begin` to `end`, where no number exceeds `top`; the sum.

    The order of the sum depends on the length alone: LANES sums beside each other, added up one
    after the other, and then what is left.
    """
    signature = types.float32(x, types.intp, types.intp, types.float32)

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        x, begin, end, top = values
        x = address(context, builder, signature.args[0], x, I64(0))
        tops = spread(builder, top)
        whole = builder.add(
            begin, builder.mul(builder.sdiv(builder.sub(end, begin), I64(LANES)), I64(LANES))
        )

        def many(index: Any, sums: list[Any]) -> list[Any]:
            place = builder.gep(x, [index])
            weights = _exp2(builder, builder.fsub(load(builder, F32, place), tops))
            builder.store(weights, builder.bitcast(place, vector(F32).as_pointer()), align=4)
            return [builder.fadd(sums[0], weights)]

        def one(index: Any, sums: list[Any]) -> list[Any]:
            place = builder.gep(x, [index])
            weight = _exp2(builder, builder.fsub(builder.load(place), top))
            builder.store(weight, place)
            return [builder.fadd(sums[0], weight)]

        zeros = ir.Constant(vector(F32), [0.0] * LANES)
        (sums,) = repeat_from(builder, begin, whole, LANES, [zeros], many)
        total = F32(0.0)
        for lane in range(LANES):
            total = builder.fadd(total, builder.extract_element(sums, I32(lane)))
        (total,) = repeat_from(builder, whole, end, 1, [total], one)
        return total

    return signature, generate


def _exp2(builder: Any, x: Any) -> Any:
    """2**x of a number or of a vector, none above 0.

    Neighbouring terms of the polynomial are joined first, and the pairs after that: a processor
    that adds a product onto a register must first copy a constant there, and so copies fewer.
    """

    def constant(number: Any) -> Any:
        value = ir.Constant(F32, float(np.float32(number)))
        return value if x.type == F32 else spread(builder, value)

    def call(name: str, *arguments: Any) -> Any:
        suffix = "f32" if x.type == F32 else f"v{LANES}f32"
        kind = ir.FunctionType(x.type, [x.type] * len(arguments))
        function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.{name}.{suffix}")
        return builder.call(function, arguments)

    x = call("maxnum", x, constant(LOWEST))
    shifted = builder.fadd(x, constant(ROUND))
    r = builder.fsub(x, builder.fsub(shifted, constant(ROUND)))
    square = builder.fmul(r, r)
    p = constant(POWERS[-1])
    for low, high in reversed(list(zip(POWERS[:-1:2], POWERS[1::2], strict=True))):
        pair = call("fmuladd", constant(high), r, constant(low))
        p = call("fmuladd", p, square, pair)
    whole = I32 if x.type == F32 else vector(I32)
    bits = I32(23) if x.type == F32 else spread(builder, I32(23))
    power = builder.shl(builder.bitcast(shifted, whole), bits)
    return builder.bitcast(builder.add(builder.bitcast(p, whole), power), x.type)
