"""Says whether the verification kernels can run, without importing Torch or Triton."""

from __future__ import annotations

import os
from functools import cache
from importlib.util import find_spec
from typing import Any

import array_api_compat as compat

DTYPES = ("torch.float32", "torch.bfloat16", "torch.float16")
OLDEST = (8, 0)
"""The lowest compute capability of devices that the kernels support."""
MOST_TOKENS = 2**20
"""The largest supported vocabulary; a larger one has more blocks than one program can hold."""


def are_on() -> bool:
    """Whether kernels can be used at all: Triton is installed and FORERUN_KERNELS is not 0."""
    return os.environ.get("FORERUN_KERNELS", "1") != "0" and _has_triton()


def can_decide(model: Any, vocab_size: int) -> bool:
    """Whether kernels can sample the tokens of a torch model on its own device."""
    import torch

    device = model.device
    if device.type != "cuda" or torch.version.hip is not None or not are_on():
        return False
    return vocab_size <= MOST_TOKENS and torch.cuda.get_device_capability(device) >= OLDEST


def is_on_device(table: Any) -> bool:
    """Whether an object is a CUDA tensor."""
    return compat.is_torch_array(table) and bool(table.is_cuda)


def fits(table: Any) -> bool:
    """Whether an array is a tensor whose dtype and width the kernels support."""
    return (
        compat.is_torch_array(table)
        and str(table.dtype) in DTYPES
        and 0 < table.shape[-1] <= MOST_TOKENS
    )


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None
