"""Matrices and models whose weights are few-bit numbers in blocks."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, dequantize
from tiny_gguf import packed
from tiny_models import Architecture

from forerun.lean.blocks import Raw
from forerun.lean.crew import Crew
from forerun.lean.formats import BLOCK, BLOCKS, INPUTS_PER_ROW, ZERO_6K, Format
from forerun.lean.from_files import with_weights
from forerun.lean.model import LeanModel
from forerun.lean.shape import LANES
from forerun.lean.storage import Layout, rounded
from forerun.lean.weights import described

DIGITS = {
    Format.BLOCK8: (-127, 127),
    Format.BLOCK6K: (-32, 31),
    Format.BLOCK5K: (0, 31),
    Format.BLOCK5: (0, 31),
    Format.BLOCK4: (0, 15),
    Format.BLOCK4K: (0, 15),
}
"""The least and the largest whole number of each format."""
Q4_K_M = (Format.BLOCK4K, Format.BLOCK6K, Format.BLOCK5K)
K_TYPES = {Format.BLOCK4K: "Q4_K", Format.BLOCK6K: "Q6_K", Format.BLOCK5K: "Q5_K"}
FORMATS = {
    "8 bits": (Format.BLOCK8,),
    "4 bits": (Format.BLOCK4,),
    "4 and 8 bits and floats": (Format.BLOCK4, Format.BLOCK8, Format.FLOAT32),
    "K-quants": Q4_K_M,
    "K-quants and floats": (Format.BLOCK4K, Format.FLOAT32),
}
PASSES = [
    pytest.param(name, marks=pytest.mark.slow if set(formats) & set(Q4_K_M) else ())
    for name, formats in FORMATS.items()
]
"""With K-quants another pass is compiled; their products are in test_tile.py."""
WIDE = {"hidden_size": 256, "intermediate_size": 512}
SIZES = {"hidden_size": 64, "intermediate_size": 96, "max_position_embeddings": 1024}


def rounded4(matrix: Any) -> Any:
    """A matrix near this one that BLOCK4 keeps."""
    blocks = matrix.reshape(len(matrix), -1, BLOCK)
    m = blocks.min(2, keepdims=True).astype(np.float16).astype(np.float32)
    d = ((blocks.max(2, keepdims=True) - m) / 15).astype(np.float16).astype(np.float32)
    q = np.clip(np.rint((blocks - m) / d), 0, 15)
    q[..., 3], q[..., 20] = 0, 15
    return (d * q + m).astype(np.float32).reshape(matrix.shape)


class Numbers(NamedTuple):
    """The numbers of a matrix in a format with units of several blocks, or with 5 bits."""

    format: Format
    d: Any  # (outputs, units, 1, 1) float16
    m: Any  # the same; None where the format has none
    scales: Any  # (outputs, units, blocks, 1), whole numbers
    offsets: Any
    q: Any  # (outputs, units, blocks, inputs)

    def blocks(self) -> tuple[Any, Any]:
        """The d and m of each block as float32, which are exact."""
        d = self.d.astype(np.float32) * self.scales.astype(np.float32)
        if self.m is None:
            return d, np.zeros_like(d)
        return d, self.m.astype(np.float32) * self.offsets.astype(np.float32)

    def matrix(self) -> Any:
        d, m = self.blocks()
        weights = (d * self.q.astype(np.float32)).astype(np.float64) + m
        return weights.astype(np.float32).reshape(len(self.q), -1)


def some_numbers(format: Format, num_outputs: int, num_units: int, seed: int = 0) -> Numbers:
    """Any numbers that a file may hold: also scales of 0, the largest, and the largest q."""
    about, generator = BLOCKS[format], np.random.default_rng(seed)
    units, (low, high) = (num_outputs, num_units, about.blocks), DIGITS[format]
    d, m = generator.uniform(1e-3, 2e-3, (2, num_outputs, num_units, 1, 1)).astype(np.float16)
    is_signed = about.numbers == 1
    least, most = (-128, 127) if is_signed else (0, 63)
    scales = generator.integers(least, most + 1, (2, *units, 1))
    q = generator.integers(low, high + 1, (*units, about.inputs))
    if about.blocks == 1:
        scales[:] = 1
    else:
        scales[:, 0, :, 0], scales[:, 1, :, 1] = 0, most
        scales[:, 1, :, 2] = least
        q[2, :, 3], q[2, :, 4] = low, high
    return Numbers(format, d, None if is_signed else -m, scales[0], scales[1], q)


def panels_of(numbers: Numbers, layout: Layout) -> Any:
    """The same as bytes (panels, bytes of a panel): `formats` and `limb_tile` say how."""
    format, d, m, scales, offsets, q = numbers
    about, (lanes, side, *_) = BLOCKS[format], layout
    strips, units = len(q) // lanes, q.shape[1]
    raised = np.zeros((*q.shape[:3], 1), np.uint16)
    if format is Format.BLOCK6K and side == 4:
        raised = (q == -ZERO_6K).all(3, keepdims=True).astype(np.uint16)
        q = np.where(raised, -1, q)
    bits = (raised[..., 0] << np.arange(about.blocks, dtype=np.uint16)).sum(2, dtype=np.uint16)
    halves = [d] if m is None else [d, m]
    header = [half.reshape(strips, lanes, units).view(np.uint16) for half in halves]
    header += [bits.reshape(strips, lanes, units)] if format is Format.BLOCK6K else []
    parts = [np.ascontiguousarray(x.swapaxes(1, 2)).view(np.uint8) for x in header]
    if about.blocks > 1:
        both = np.stack([scales] if m is None else [scales, offsets], 3)[..., 0].astype(np.int8)
        both = both.reshape(strips, lanes, units, -1).transpose(0, 2, 3, 1)
        parts.append(np.ascontiguousarray(both).view(np.uint8).reshape(strips, units, -1))
    digits = (q + (ZERO_6K if format is Format.BLOCK6K else 0)).astype(np.uint8)
    chunk = about.inputs if side == 4 else INPUTS_PER_ROW[format]
    digits = digits.reshape(strips, lanes, units, -1, chunk // side, side)
    digits = digits.transpose(0, 2, 3, 4, 1, 5)  # strips, units, chunks, rows, lanes, inputs
    low, high = np.split(digits & 15, 2, axis=3)
    rows = low | high << 4
    if about.bits > 4:
        moves = (about.bits - 4) * np.arange(chunk // side)[:, None, None]
        above = ((digits >> 4) << moves).sum(3, keepdims=True, dtype=np.uint8)
        rows = np.concatenate([rows, above], 3)
    parts.append(rows.reshape(strips, units, -1))
    return np.concatenate(parts, 2).reshape(len(q) // LANES, -1)


def few_bit_model(formats: tuple[Format, ...], folder: Path) -> tuple[Any, dict[str, Raw]]:
    """A transformers model whose matrices are of these block formats, gate and up of the same; and
    its weights in a file."""
    sizes = SIZES | (WIDE if set(formats) & set(Q4_K_M) else {})
    model = Architecture("llama", "", sizes, dtype=torch.float32).build()
    path, raws, number = folder / "weights", {}, 0
    with path.open("wb") as stream:
        for name, module in model.named_modules():
            if type(module) not in (torch.nn.Linear, torch.nn.Embedding):
                continue
            matrix, kind = module.weight.data.numpy(), "F32"
            data = matrix
            if type(module) is torch.nn.Linear:
                format = formats[(0, 1, 2, 0, 2, 2, 1)[number % 7] % len(formats)]
                number += 1
                if format in K_TYPES:
                    kind = K_TYPES[format]
                    data = packed(matrix, GGMLQuantizationType[kind])
                    matrix = np.array(dequantize(data, GGMLQuantizationType[kind]), np.float32)
                elif format is not Format.FLOAT32:
                    data = matrix = (rounded if format is Format.BLOCK8 else rounded4)(matrix)
            module.weight.data = torch.from_numpy(matrix)
            raws[f"{name}.weight"] = Raw(name, kind, matrix.shape, str(path), stream.tell())
            stream.write(np.ascontiguousarray(data).tobytes())
    return model, raws


def lean_model(model: Any, raws: dict[str, Raw], num_threads: int | None = None) -> LeanModel:
    """The model as the lean pass reads it from the file."""
    made = LeanModel.from_packed(with_weights(described(model), raws), "", None, lambda: model)
    made._crew = Crew(num_threads)
    return made
