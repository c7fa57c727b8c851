"""Matrices and models whose weights are few-bit numbers in blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import Architecture

from forerun.lean.formats import BLOCK, BLOCKS, Format
from forerun.lean.storage import rounded

DIGITS = {
    Format.BLOCK8: (-127, 127),
    Format.BLOCK6K: (-32, 31),
    Format.BLOCK5K: (0, 31),
    Format.BLOCK4: (0, 15),
    Format.BLOCK4K: (0, 15),
}
"""The least and the largest whole number of each format."""
Q4_K_M = (Format.BLOCK4K, Format.BLOCK6K, Format.BLOCK5K)
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
SIZES = {"hidden_size": 64, "intermediate_size": 96, "max_position_embeddings": 1024}


def rounded4(matrix: Any) -> Any:
    """A matrix near this one that BLOCK4 keeps."""
    blocks = matrix.reshape(len(matrix), -1, BLOCK)
    m = blocks.min(2, keepdims=True).astype(np.float16).astype(np.float32)
    d = ((blocks.max(2, keepdims=True) - m) / 15).astype(np.float16).astype(np.float32)
    q = np.clip(np.rint((blocks - m) / d), 0, 15)
    q[..., 3], q[..., 20] = 0, 15
    return (d * q + m).astype(np.float32).reshape(matrix.shape)


def rounded_k(matrix: Any, format: Format) -> Any:
    """A matrix near this one, as K-quants keep it: scales of 17 bits."""
    size, header, _, _ = BLOCKS[format]
    blocks = matrix.reshape(len(matrix), -1, size)
    least, largest = blocks.min(2, keepdims=True), blocks.max(2, keepdims=True)
    if header == 1:
        d = 3 * (np.abs(blocks).max(2, keepdims=True) / 93).astype(np.float16).astype(np.float32)
        return (d * np.rint(blocks / d)).astype(np.float32).reshape(matrix.shape)
    most = 31 if format is Format.BLOCK5K else 15
    d, m = ((largest - least) / most, least)
    d, m = (5 * (x / 5).astype(np.float16).astype(np.float32) for x in (d, m))
    q = np.clip(np.rint((blocks - m) / d), 0, most)
    return (d * q + m).astype(np.float32).reshape(matrix.shape)


def few_bit_model(formats: tuple[Format, ...]) -> Any:
    """A transformers model whose matrices are of these block formats, gate and up of the same."""
    model = Architecture("llama", "", SIZES, dtype=torch.float32).build()
    modules = [module for module in model.modules() if type(module) is torch.nn.Linear]
    for number, module in enumerate(modules):
        format = formats[(0, 1, 2, 0, 2, 2, 1)[number % 7] % len(formats)]
        matrix = module.weight.data.numpy()
        if format is Format.FLOAT32:
            continue
        if format in Q4_K_M:
            nearest = rounded_k(matrix, format)
        else:
            nearest = rounded(matrix) if format is Format.BLOCK8 else rounded4(matrix)
        module.weight.data = torch.from_numpy(nearest)
    return model
