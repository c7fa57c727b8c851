"""Writes a piece of a panel out as float32, for passes of more tokens than one tile holds: each
tile would otherwise convert the same weights again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types

from forerun.lean.formats import BYTE, F32, I64, Format, read_row, vector
from forerun.lean.jit import intrinsic
from forerun.lean.shape import LANES
from forerun.lean.tile import address, repeat_rows


def unpack_from(format: Format) -> Callable[..., Any]:
    """Make the function that writes out weights of one format."""

    @intrinsic
    def unpack(
        context: Any,
        w: Any,
        w_at: Any,  # in elements of w
        depth: Any,  # inputs, in whole units
        y: Any,  # float32
    ) -> Any:
        """Write `depth` inputs from `w_at` on as float32 (inputs, LANES) into y."""
        n = types.intp
        signature = types.void(w, n, n, y)

        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            w, w_at, depth, y = values
            w = builder.bitcast(address(context, builder, signature.args[0], w, w_at), BYTE)
            y = address(context, builder, signature.args[3], y, I64(0))
            builder.call(_define(builder.module, format), [w, depth, y])
            return context.get_dummy_value()

        return signature, generate

    return unpack


unpack_float32 = unpack_from(Format.FLOAT32)
unpack_bfloat16 = unpack_from(Format.BFLOAT16)
unpack_float16 = unpack_from(Format.FLOAT16)
unpack_block8 = unpack_from(Format.BLOCK8)
unpack_block6k = unpack_from(Format.BLOCK6K)
unpack_block5k = unpack_from(Format.BLOCK5K)
unpack_block5 = unpack_from(Format.BLOCK5)
unpack_block4 = unpack_from(Format.BLOCK4)
unpack_block4k = unpack_from(Format.BLOCK4K)


def _define(module: Any, format: Format) -> Any:
    """The LLVM function of this format, which a module contains once however often it is called."""
    name = f"forerun_unpack_{format.name.lower()}"
    if name in module.globals:
        return module.globals[name]
    kind = ir.FunctionType(ir.VoidType(), [BYTE, I64, F32.as_pointer()])
    function = ir.Function(module, kind, name)
    function.linkage = "linkonce_odr"
    function.attributes.add("noinline")
    w, depth, y = function.args
    builder = ir.IRBuilder(function.append_basic_block())

    def row(k: Any, place: Any, scales: list[Any], _: list[Any]) -> list[Any]:
        for offset, weights in enumerate(read_row(builder, format, place, scales)):
            at = builder.mul(builder.add(k, I64(offset)), I64(LANES))
            out = builder.bitcast(builder.gep(y, [at]), vector(F32).as_pointer())
            builder.store(weights, out, align=4)
        return []

    repeat_rows(builder, format, w, depth, [], row)
    builder.ret_void()
    return function
