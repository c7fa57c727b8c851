"""How kernels read few-bit weights (`forerun.models.packed`): their operand and the constant
FORMAT."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from forerun.models.packed import NUMBERS, TABLES, Packed

PLAIN = ("",)
"""FORMAT of a matrix that is not packed."""
BASES = {torch.bfloat16: 0x4300, torch.float16: 0x6400}
"""The bits of 128 in bfloat16 and of 1024 in float16. The lowest bits of these numbers count in
steps of 1, so setting them adds a small integer."""
OLDEST = (9, 0)
"""The compute capability from which devices can multiply pairs of bfloat16 numbers."""
E4M3 = (
    "and.b32 a, $1, 0x87F087F0; ",
    "shr.b32 b, $1, 4; shl.b32 a, $1, 4; and.b32 b, b, 0x07000700; "
    "lop3.b32 a, a, 0x80F080F0, b, 0xEA; ",
)
"""Assembly for part 0 and part 1 of a word: puts the bits of two e4m3 numbers into two bfloat16
numbers."""


def operand(matrix: Any) -> dict[str, Any]:
    """The arguments w and FORMAT for a product with a matrix, which may be packed or an ordinary
    tensor."""
    if not isinstance(matrix, Packed):
        return {"w": matrix, "FORMAT": PLAIN}
    absent = matrix.words
    tables = [getattr(matrix, name) for name in TABLES]
    whole = 0 if matrix.whole_scales is None else matrix.shape[1] // matrix.whole_scales.shape[1]
    about, (how, assembly) = NUMBERS[matrix.number], _arithmetic(matrix)
    return {
        "w": tuple(absent if table is None else table for table in tables),
        "FORMAT": (
            matrix.number, about.parts, matrix.part, matrix.group, matrix.rows,
            0 if matrix.offsets is not None else about.middle, matrix.zeros is not None,
            matrix.offsets is not None, how, about.lift, BASES[matrix.dtype] * 0x10001,
            about.words, whole, *assembly,
        ),
    }  # fmt: skip


def _arithmetic(matrix: Packed) -> tuple[str, tuple[str, ...]]:
    """The way in which kernels compute weights from numbers and scales (entry 8 of FORMAT), and the
    assembly for it."""
    is_bfloat = matrix.dtype == torch.bfloat16
    if _has_pairs(matrix.device) and matrix.offsets is None:
        has_zeros = matrix.zeros is not None
        found = _assembly(matrix.number, is_bfloat)
        takes_zeros = matrix.number == "int4" or not is_bfloat
        if matrix.scales.dtype == matrix.dtype and found and (takes_zeros or not has_zeros):
            return "pairs", found
        if matrix.number == "e4m3" and is_bfloat:
            return "wide", _wide_assembly()
    return "plain", ()


@cache
def _has_pairs(device: Any) -> bool:
    return device.type == "cuda" and bool(torch.cuda.get_device_capability(device) >= OLDEST)


def _assembly(number: str, is_bfloat: bool) -> tuple[str, ...]:
    """Assembly that makes the weights of each part from two words ($1). It multiplies them by a
    pair of scales ($2); from integers it first subtracts the zeros ($4), which have the bits of 128
    or 1024 added. Empty for number formats without assembly, such as int6."""
    if number == "int6":
        return ()
    kind, base = ("bf16x2", "0x43004300") if is_bfloat else ("f16x2", "0x64006400")
    end = f"mul.rn.{kind} $0, a, $2; }}"
    begin, parts = "{ .reg .b32 a, b; ", NUMBERS[number].parts
    if number == "e4m3":
        return (f"{begin}{E4M3[0]}{end}", f"{begin}{E4M3[1]}{end}") if is_bfloat else ()
    if number == "e2m1":
        found = []
        for p in range(parts):
            turn = f"shl.b32 a, $1, {6 - 4 * p};" if p < 2 else f"shr.b32 a, $1, {4 * p - 6};"
            found.append(
                f"{begin}{turn} shl.b32 b, $1, {12 - 4 * p}; and.b32 b, b, 0x80008000; "
                f"lop3.b32 a, a, 0x01C001C0, b, 0xEA; {end}"
            )
        return tuple(found) if is_bfloat else ()
    end = f"sub.rn.{kind} a, a, $4; {end}"
    if number == "int4":
        return tuple(
            f"{begin}shr.b32 a, $1, {4 * p}; lop3.b32 a, a, 0x000F000F, {base}, 0xEA; {end}"
            for p in range(parts)
        )
    if not is_bfloat:
        return tuple(
            f"{begin}shr.b32 a, $1, {8 * p}; lop3.b32 a, a, 0x00FF00FF, {base}, 0xEA; {end}"
            for p in range(parts)
        )
    return tuple(  # 128 and the low seven bits, less 128 or 256 by the eighth
        f"{begin}shr.b32 b, $1, {8 * p}; lop3.b32 a, b, 0x007F007F, {base}, 0xEA; "
        f"lop3.b32 b, b, 0x00800080, 0x43804380, 0x6A; sub.rn.bf16x2 a, a, b; "
        "mul.rn.bf16x2 $0, a, $2; }"
        for p in range(parts)
    )


def _wide_assembly() -> tuple[str, ...]:
    """Assembly that makes the weights of part 0 and of part 1 from two words ($1) of e4m3 numbers,
    which it multiplies by float32 scales ($2 and $3)."""
    begin = "{ .reg .b32 a, b, l, h; .reg .f32 f, g; "
    end = (
        "shl.b32 l, a, 16; and.b32 h, a, 0xFFFF0000; mov.b32 f, l; mov.b32 g, h; "
        "mul.rn.f32 f, f, $2; mul.rn.f32 g, g, $3; cvt.rn.bf16x2.f32 $0, g, f; }"
    )
    return f"{begin}{E4M3[0]}{end}", f"{begin}{E4M3[1]}{end}"
