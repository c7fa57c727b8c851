"""How this package compiles: the flags in one place, and types that survive the decorators."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba.extending import intrinsic as numba_intrinsic

Function = TypeVar("Function", bound=Callable[..., Any])

# Products may be fused with sums, and nothing may be reordered: see the package's last promise.
ORDERED = frozenset({"contract", "nnan", "ninf", "nsz"})
# A division that may raise keeps its loop from vectorising.
COMMON: dict[str, Any] = {"nogil": True, "error_model": "numpy"}


def compiled(function: Function) -> Function:
    """Machine code on first call, run without the GIL."""
    return cast(Function, numba.njit(fastmath=set(ORDERED), **COMMON)(function))


def inlined(function: Function) -> Function:
    """`compiled` into its caller only: what calls the tile would otherwise be compiled twice."""
    options = {**COMMON, "fastmath": set(ORDERED), "inline": "always"}
    return cast(Function, numba.njit(**options)(function))


def reordered(function: Function) -> Function:
    """`compiled`, for reductions over one token's numbers: they only vectorise if reordered."""
    return cast(Function, numba.njit(fastmath=True, **COMMON)(function))


def entry(function: Function) -> Function:
    """`compiled`, and kept on disk for the next process.

    Numba looks for changes only in the file of the function itself, so the function must be a
    closure over `sources()`: closed-over values are part of its key.
    """
    return kept(function, fastmath=set(ORDERED))


def exact_entry(function: Function) -> Function:
    """Kept on disk too, with arithmetic to the letter; it may depend on nothing but its file."""
    return kept(function)


def kept(function: Function, **options: Any) -> Function:
    """On disk beside this package or in the user's cache; nowhere, if neither can be written."""
    try:
        return cast(Function, numba.njit(cache=True, **COMMON, **options)(function))
    except RuntimeError:
        return cast(Function, numba.njit(**COMMON, **options)(function))


def intrinsic(writer: Callable[..., Any]) -> Callable[..., Any]:
    """What `writer` writes in LLVM instructions, as a function for compiled code."""
    return cast(Callable[..., Any], numba_intrinsic(writer))


def sources() -> int:
    """A number that changes when any file of this package does."""
    digest = sha256()
    for file in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(file.read_bytes())
    return int.from_bytes(digest.digest()[:6], "big")
