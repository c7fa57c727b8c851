"""The size of tiles that fits this processor's vector registers, and the instructions it has."""

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
"""The features of an x86 processor that each kind of `dots` needs, the best kind first."""


class Shape(NamedTuple):
    """A tile of `lanes` outputs by `tokens` tokens, which leaves registers for the operands."""

    lanes: int
    tokens: int


def is_arm() -> bool:
    """Whether this is a 64-bit ARM processor."""
    return platform.machine() in ("aarch64", "arm64")


def known_features() -> str:
    """The features of this processor that LLVM may use; users can restrict them by Numba's
    environment variable NUMBA_CPU_FEATURES."""
    if config.CPU_FEATURES is not None:
        return str(config.CPU_FEATURES)
    return str(get_host_cpu_features())


def best_shape() -> Shape:
    """The tile for this processor.  Its sums take 16 of 32 registers of 512 bits, 12 of 16 of 256,
    or 24 of 32 of 128."""
    is_wide = "+avx512f" in known_features()
    return Shape(lanes=32, tokens=8) if is_wide else Shape(lanes=16, tokens=6)


def dot_products() -> str:
    """The name of the `dots` instructions of this processor; empty if it has none, or if the
    environment has FORERUN_DOT_PRODUCTS=0."""
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
    """Whether an ARM processor has sdot, as the system says; LLVM does not list this feature."""
    if config.CPU_FEATURES is not None or "+dotprod" in known_features():
        return "+dotprod" in known_features()
    if platform.system() == "Darwin":
        return True  # all of Apple's have it
    try:
        return "asimddp" in Path("/proc/cpuinfo").read_text().split()
    except OSError:
        return False


LANES, TOKENS = best_shape()
READS_HALVES = "+f16c" in known_features() or is_arm()
"""Whether an instruction reads float16.  Without one LLVM calls a library that may be missing."""
DOT_PRODUCTS = dot_products()
HAS_DOT_PRODUCTS = DOT_PRODUCTS != ""
"""Whether block formats are multiplied by `limb_tile`, in passes of every size, or by `tile`.  The
two round differently, so the choice changes results as well as speed.  All instructions of `dots`
give equal numbers, but each needs its own layout of the weights."""
