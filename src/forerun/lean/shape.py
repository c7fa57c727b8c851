"""The block of sums that fits this processor's vector registers."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import NamedTuple

from llvmlite import binding
from numba import config


class Shape(NamedTuple):
    """So many outputs by so many tokens, with registers to spare for the operands."""

    lanes: int
    tokens: int


def is_arm() -> bool:
    return platform.machine() in ("aarch64", "arm64")


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


def has_dot_products() -> bool:
    """Whether one instruction adds up products of bytes; FORERUN_DOT_PRODUCTS=0 says no.

    On ARM the system is asked, because LLVM does not list this feature.
    """
    if os.environ.get("FORERUN_DOT_PRODUCTS") == "0" or not is_arm():
        return False
    if config.CPU_FEATURES is not None or "+dotprod" in known_features():
        return "+dotprod" in known_features()
    if platform.system() == "Darwin":
        return True  # all of them have it
    try:
        return "asimddp" in Path("/proc/cpuinfo").read_text().split()
    except OSError:
        return False


LANES, TOKENS = best_shape()
READS_HALVES = "+f16c" in known_features() or is_arm()
"""Whether there is an instruction for float16; what LLVM calls instead may not be there at all."""
HAS_DOT_PRODUCTS = has_dot_products()
"""Which of two kinds of products serves the block formats, in passes of every size: those of
`limb_tile`, or those of `tile`.  They round differently, so this is no matter of speed alone."""
