"""Compiled functions of one number or of one token's vector, from which passes are built."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.np.arrayobj import populate_array
from numpy.typing import NDArray

from forerun.lean.jit import compiled, intrinsic, reordered, reordered_with_infinities

Floats = NDArray[np.float32]

PER_LN2 = np.float32(1.4426950408889634)
LN2_HIGH, LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
ROUND = np.float32(12582912.0)  # 1.5 * 2**23: adding it rounds to a whole number
# Minimax polynomial of (exp(r) - 1 - r) / r**2 on |r| <= ln(2) / 2, from Cephes' expf.
P0, P1, P2 = np.float32(1.9875691500e-4), np.float32(1.3981999507e-3), np.float32(8.3334519073e-3)
P3, P4, P5 = np.float32(4.1665795894e-2), np.float32(1.6666665459e-1), np.float32(5.0000001201e-1)
LOWEST, HIGHEST = np.float32(-87.0), np.float32(88.0)


@compiled
def exp(x: Any) -> Any:
    """e**x to about one unit in the last place, in operations that vectorise.

    The library's function would be called number by number, which for attention over a long text
    costs more than reading its keys.
    """
    x = min(max(x, LOWEST), HIGHEST)
    n = (x * PER_LN2 + ROUND) - ROUND
    r = x - n * LN2_HIGH - n * LN2_LOW
    p = ((((P0 * r + P1) * r + P2) * r + P3) * r + P4) * r + P5
    return (p * r * r + r + np.float32(1)) * power_of_two(n)


@intrinsic
def power_of_two(context: Any, n: Any) -> Any:
    """2**n for a whole n from -126 to 127, by writing the exponent."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        i32 = ir.IntType(32)
        exponent = builder.add(builder.fptosi(values[0], i32), i32(127))
        return builder.bitcast(builder.shl(exponent, i32(23)), ir.FloatType())

    return types.float32(types.float32), generate


@intrinsic
def larger(context: Any, a: Any, b: Any) -> Any:
    """The larger of two numbers, neither NaN.  Numba's `max` also handles NaN and is slow."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        kind = ir.FunctionType(ir.FloatType(), [ir.FloatType()] * 2)
        maximum = cgutils.get_or_insert_function(builder.module, kind, "llvm.maxnum.f32")
        return builder.call(maximum, values, fastmath=("nnan", "nsz"))

    return types.float32(types.float32, types.float32), generate


@intrinsic
def floats_at(context: Any, address: Any, count: Any) -> Any:
    """`count` float32 numbers at an address, as an array that does not own them."""
    kind = types.Array(types.float32, 1, "C")

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        array = context.make_array(kind)(context, builder)
        size = context.get_constant(types.intp, 4)
        populate_array(
            array,
            data=builder.inttoptr(values[0], array.data.type),
            shape=[values[1]],
            strides=[size],
            itemsize=size,
            meminfo=None,
        )
        return array._getvalue()

    return kind(types.intp, types.intp), generate


@compiled
def copy(x: Floats, out: Floats) -> None:
    """Copy a vector.  An array assignment would do the same but takes seconds to compile."""
    for i in range(x.size):
        out[i] = x[i]


@compiled
def copy_scaled(x: Floats, scale: Any, out: Floats) -> None:
    """Write x times a number into `out`."""
    for i in range(x.size):
        out[i] = x[i] * scale


@reordered
def normalise(x: Floats, weight: Floats, eps: Any, out: Floats) -> None:
    """Write the RMS norm of x, times `weight`, into `out`, which may be x."""
    total = np.float32(0)
    for i in range(x.size):
        total += x[i] * x[i]
    scale = np.float32(1) / np.sqrt(total / np.float32(x.size) + eps)
    for i in range(x.size):
        out[i] = x[i] * scale * weight[i]


@reordered
def add_normalised(x: Floats, weight: Floats, eps: Any, out: Floats) -> None:
    """Add the RMS norm of x, times `weight`, to `out`."""
    total = np.float32(0)
    for i in range(x.size):
        total += x[i] * x[i]
    scale = np.float32(1) / np.sqrt(total / np.float32(x.size) + eps)
    for i in range(x.size):
        out[i] += x[i] * scale * weight[i]


@reordered_with_infinities
def largest(x: Floats, count: int) -> Any:
    """The maximum of the first `count` numbers."""
    top = x[0]
    for i in range(count):
        top = larger(top, x[i])
    return top


@reordered
def total(x: Floats, count: int) -> Any:
    """The sum of the first `count` numbers."""
    result = np.float32(0)
    for i in range(count):
        result += x[i]
    return result
