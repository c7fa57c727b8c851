"""Matrices as checkpoints of few bits store them, beside the weights that they stand for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

GROUP = 32
Stored = tuple[dict[str, Any], Any]  # tensors by the rest of their names, and the weights


def scales_of(*shape: int, dtype: Any = torch.bfloat16) -> Any:
    return (0.002 + 0.004 * torch.rand(shape)).to(dtype)


def spread(table: Any, rows: int, depth: int) -> Any:
    wide = table.float().repeat_interleave(rows // len(table), 0)
    return wide.repeat_interleave(depth // table.shape[1], 1)


def float8(rows: int, depth: int, name: str, table: Any) -> Stored:
    values = (20 * torch.randn(rows, depth)).to(torch.float8_e4m3fn)
    scales = table if table.dim() == 2 else table.reshape(-1, 1)
    weights = (values.float() * spread(scales, rows, depth)).bfloat16()
    return {"weight": values, name: table}, weights


def in_words(numbers: Any, bits: int) -> Any:
    """Rows of numbers as 32-bit words, the lowest bits first."""
    each = numbers.long().reshape(len(numbers), -1, 32 // bits)
    words = (each << torch.arange(0, 32, bits)).sum(2)
    return words.to(torch.int32)


def pack_quantized(rows: int, depth: int, bits: int, has_zeros: bool) -> Stored:
    numbers = torch.randint(0, 1 << bits, (rows, depth))
    scales = scales_of(rows, depth // GROUP)
    zeros = torch.full_like(scales, 1 << (bits - 1), dtype=torch.long)
    parts = {"weight_packed": in_words(numbers, bits), "weight_scale": scales,
             "weight_shape": torch.tensor([rows, depth])}  # fmt: skip
    if has_zeros:
        zeros = torch.randint(0, 1 << bits, scales.shape)
        parts["weight_zero_point"] = in_words(zeros.T, bits).T.contiguous()
    weights = (numbers - spread(zeros, rows, depth)) * spread(scales, rows, depth)
    return parts, weights.bfloat16()


def int8(rows: int, depth: int) -> Stored:
    values, scales = torch.randint(-128, 128, (rows, depth)), scales_of(rows, 1)
    weights = values * scales.float()
    return {"weight": values.to(torch.int8), "weight_scale": scales}, weights.bfloat16()


def mxfp4(rows: int, depth: int) -> Stored:
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    numbers = torch.randint(0, 16, (rows, depth), dtype=torch.uint8)
    exponents = torch.randint(115, 122, (rows, depth // 32), dtype=torch.uint8)
    signs = 1 - 2 * (numbers >> 3).float()
    weights = signs * values[(numbers & 7).long()] * spread(2.0 ** (exponents - 127.0), rows, depth)
    pairs = numbers[:, ::2] | numbers[:, 1::2] << 4
    return {"weight_packed": pairs, "weight_scale": exponents}, weights.bfloat16()


def awq(rows: int, depth: int) -> Stored:
    numbers = torch.randint(0, 16, (depth, rows))
    scales = scales_of(depth // GROUP, rows, dtype=torch.float16)
    zeros = torch.randint(0, 16, scales.shape)
    order = [0, 2, 4, 6, 1, 3, 5, 7]

    def words(table: Any) -> Any:
        return in_words(table.reshape(len(table), -1, 8)[:, :, order].reshape(table.shape), 4)

    weights = (numbers.T - spread(zeros.T, rows, depth)) * spread(scales.T, rows, depth)
    return {"qweight": words(numbers), "qzeros": words(zeros), "scales": scales}, weights.bfloat16()


def gptq(rows: int, depth: int, bits: int, is_symmetric: bool) -> Stored:
    numbers = torch.randint(0, 1 << bits, (rows, depth))
    scales = scales_of(depth // GROUP, rows, dtype=torch.float16)
    zeros = torch.randint(1, 1 << bits, scales.shape)
    if is_symmetric:
        zeros = torch.full_like(zeros, 1 << (bits - 1))
    parts = {"qweight": in_words(numbers, bits).T.contiguous(), "scales": scales,
             "qzeros": in_words(zeros - 1, bits),
             "g_idx": torch.arange(depth, dtype=torch.int32) // GROUP}  # fmt: skip
    weights = (numbers - spread(zeros.T, rows, depth)) * spread(scales.T, rows, depth)
    return parts, weights.bfloat16()


def compressed(name: str, kind: str, bits: int, **weights: Any) -> dict[str, Any]:
    about = {"num_bits": bits, "type": kind, **weights}
    return {"quant_method": "compressed-tensors", "format": name, "ignore": ["lm_head"],
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": about}}}  # fmt: skip


FP8 = {"quant_method": "fp8", "weight_block_size": [32, 32]}
FLOAT = compressed("float-quantized", "float", 8)
FORMATS: dict[str, tuple[dict[str, Any], Callable[[int, int], Stored]]] = {
    "fp8, blocks": (FP8, lambda rows, depth: float8(
        rows, depth, "weight_scale_inv", scales_of(rows // 32, depth // 32, dtype=torch.float32))),
    "fp8, the matrix": (FP8, lambda rows, depth: float8(
        rows, depth, "weight_scale_inv", scales_of(1, dtype=torch.float32).squeeze(0))),
    "float-quantized, rows": (FLOAT, lambda rows, depth: float8(
        rows, depth, "weight_scale", scales_of(rows, 1))),
    "int-quantized": (compressed("int-quantized", "int", 8), int8),
    "pack-quantized, 4 bits": (compressed("pack-quantized", "int", 4), lambda rows, depth:
        pack_quantized(rows, depth, 4, has_zeros=False)),
    "pack-quantized, 4 bits, zeros": (compressed("pack-quantized", "int", 4), lambda rows, depth:
        pack_quantized(rows, depth, 4, has_zeros=True)),
    "pack-quantized, 8 bits": (compressed("pack-quantized", "int", 8), lambda rows, depth:
        pack_quantized(rows, depth, 8, has_zeros=False)),
    "mxfp4": (compressed("mxfp4-pack-quantized", "float", 4), mxfp4),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm"}, awq),
    "gptq, 4 bits": ({"quant_method": "gptq", "bits": 4, "group_size": GROUP}, lambda rows, depth:
        gptq(rows, depth, 4, is_symmetric=False)),
    "gptq, 8 bits": ({"quant_method": "gptq", "bits": 8, "group_size": GROUP}, lambda rows, depth:
        gptq(rows, depth, 8, is_symmetric=True)),
}  # fmt: skip


def edited(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file({name: values.contiguous() for name, values in tensors.items()},
              folder / "model.safetensors")  # fmt: skip
