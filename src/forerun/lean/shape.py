"""The block of sums that fits this processor's vector registers."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import NamedTuple

from numba import config
from numba.core.codegen import get_host_cpu_features

X86 = {
    "vnni512": ("avx512f", "avx512bw", "avx512vnni"),
    "vnni256": ("avx2", "fma", "f16c", "avxvnni"),
    "madd512": ("avx512f", "avx512bw"),
    "madd256": ("avx2", "fma", "f16c"),
}
"""What each kind of `dots` needs, the best first."""


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
    return str(get_host_cpu_features())


def best_shape() -> Shape:
    """16 of 32 registers of 512 bits, 12 of 16 of 256, or 24 of 32 of 128."""
    is_wide = "+avx512f" in known_features()
    return Shape(lanes=32, tokens=8) if is_wide else Shape(lanes=16, tokens=6)


def dot_products() -> str:
    """Which instructions add up products of bytes (`dots`); FORERUN_DOT_PRODUCTS=0 says none."""
    if os.environ.get("FORERUN_DOT_PRODUCTS") == "0":
        return ""
    if is_arm():
        return "sdot" if _has_sdot() else ""
    features = known_features().split(",")
    for name, parts in X86.items():
        if all(f"+{part}" in features for part in parts):
            return name
    return ""


def _has_sdot() -> bool:
    """The system is asked, because LLVM does not list this feature."""
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
DOT_PRODUCTS = dot_products()
HAS_DOT_PRODUCTS = DOT_PRODUCTS != ""
"""Which of two kinds of products serves the block formats, in passes of every size: those of
`limb_tile`, or those of `tile`.  They round differently, so this is no matter of speed alone.
All instructions of `dots` give the same numbers, but want the weights in layouts of their own."""
