"""The block of sums that fits this processor's vector registers."""

from __future__ import annotations

import platform
from typing import NamedTuple

from llvmlite import binding
from numba import config


class Shape(NamedTuple):
    """So many outputs by so many tokens, with registers to spare for the operands."""

    lanes: int
    tokens: int


def known_features() -> str:
    """What LLVM may use of this processor; a user may have told Numba to hold back."""
    if config.CPU_FEATURES is not None:
        return str(config.CPU_FEATURES)
    try:
        return str(binding.get_host_cpu_features().flatten())
    except RuntimeError:  # LLVM does not know this processor
        return ""


def best_shape() -> Shape:
    """16 of 32 registers of 512 bits, 12 of 16 of 256, or 24 of 32 of 128."""
    is_wide = "+avx512f" in known_features()
    return Shape(lanes=32, tokens=8) if is_wide else Shape(lanes=16, tokens=6)


LANES, TOKENS = best_shape()
READS_HALVES = "+f16c" in known_features() or platform.machine() in ("aarch64", "arm64")
"""Whether there is an instruction for float16; what LLVM calls instead may not be there at all."""
