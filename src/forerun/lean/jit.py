"""The decorators with which this package compiles: Numba's flags in one place, and kept types."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba.core.event import Listener, register
from numba.extending import intrinsic as numba_intrinsic

from forerun.base import clock
from forerun.lean.shape import DOT_PRODUCTS

Function = TypeVar("Function", bound=Callable[..., Any])

# Products may be fused with sums, but nothing may be reordered: the numbers of a token must not
# depend on what else is in the pass.
ORDERED = frozenset({"contract", "nnan", "ninf", "nsz"})
# A division that may raise keeps its loop from vectorising.
COMMON: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
UNCOUNTED: dict[str, Any] = {**COMMON, "_nrt": False}


class Timekeeper(Listener):  # type: ignore[misc]
    """Stops the clock of rounds while Numba compiles.

    Compilations nest, because a function is compiled while one that calls it is; `depth` counts
    them.  Numba's lock lets one thread compile at a time.
    """

    def __init__(self) -> None:
        self.depth = 0

    def on_start(self, event: Any) -> None:
        if self.depth == 0:
            clock.start_compiler()
        self.depth += 1

    def on_end(self, event: Any) -> None:
        self.depth -= 1
        if self.depth == 0:
            clock.stop_compiler()


register("numba:compile", Timekeeper())


def compiled(function: Function) -> Function:
    """Compile on first call, to code that runs without the GIL and without counting references.

    Numba would count the users of an array whenever a view of it is taken, in memory that all
    threads write to; for a panel that costs as much as its products.  The counts are not needed:
    the caller of an `entry` holds all arrays until it returns, and no view outlives the call that
    took it.  An array made inside would never be freed, so Numba refuses to compile a function of
    this kind that makes one; such a function needs `counted`.
    """
    return cast(Function, numba.njit(fastmath=set(ORDERED), **UNCOUNTED)(function))


def inner(function: Function) -> Function:
    """Like `compiled`, for functions that only compiled code calls; a call from Python would crash.

    The code that converts arguments from Python is left out, which for tuples of many arrays saves
    a tenth of the time to compile a pass.
    """
    options = {**UNCOUNTED, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return cast(Function, numba.njit(fastmath=set(ORDERED), **options)(function))


def counted(function: Function) -> Function:
    """Like `compiled`, for functions that make arrays.  Only an `entry` or another `counted`
    function may call them: others would not free the array."""
    return cast(Function, numba.njit(fastmath=set(ORDERED), _nrt=True, **COMMON)(function))


def inlined(function: Function) -> Function:
    """Like `compiled`, but always inlined into the caller.  Functions that call the tile would
    otherwise be compiled twice."""
    options = {**UNCOUNTED, "fastmath": set(ORDERED), "inline": "always"}
    return cast(Function, numba.njit(**options)(function))


def reordered(function: Function) -> Function:
    """Like `compiled`, for reductions over the numbers of one token, which vectorise only if they
    may be reordered."""
    return cast(Function, numba.njit(fastmath=True, **UNCOUNTED)(function))


def reordered_with_infinities(function: Function) -> Function:
    """Like `reordered`, for numbers that may be infinite."""
    flags = {"nnan", "nsz", "reassoc"}
    return cast(Function, numba.njit(fastmath=flags, **UNCOUNTED)(function))


def entry(function: Function) -> Function:
    """Like `counted`, and kept on disk for the next process.

    Numba looks for changes only in the file of the function itself, so the function must be a
    closure over `sources()`: values in a closure are part of the key under which code is kept.
    """
    return kept(function, fastmath=set(ORDERED))


def exact_entry(function: Function) -> Function:
    """Like `entry`, but with exact IEEE arithmetic: no fused products, no reordering.  The function
    must either depend on its own file only, or be a closure over `sources()`."""
    return kept(function)


def kept(function: Function, **options: Any) -> Function:
    """Compile with code kept on disk, beside this package or in the user's cache.

    If neither can be written, the code is not kept and `clock.is_code_kept` becomes false.  Files
    that cannot be read are treated as missing.
    """
    try:
        made = numba.njit(cache=True, **COMMON, **options)(function)
    except RuntimeError:
        clock.is_code_kept = False
        return cast(Function, numba.njit(**COMMON, **options)(function))
    files: Any = getattr(made._cache, "_cache_file", None)
    if read := getattr(files, "_load_index", None):
        files._load_index = lambda: _unless_damaged(read) or {}
    if load := getattr(made._cache, "load_overload", None):
        made._cache.load_overload = lambda *about: _unless_damaged(load, *about)
    return cast(Function, made)


def is_on_disk(function: Any) -> bool:
    """Whether code of an `entry` of this version is on disk for this processor, for any arguments.
    True also where Numba's internals do not say, so nothing may rely on it."""
    try:
        cache = function._cache
        _, *about = cache._index_key(None, function.targetctx.codegen())
        return any(list(key[1:]) == about for key in cache._cache_file._load_index())
    except Exception:
        return True


def _unless_damaged(read: Callable[..., Any], *about: Any) -> Any:
    """Return the result of `read`, or None if it raises; the code is then compiled and kept again.

    An index of another version may name types that are gone, and Numba looks for these before it
    compares versions.
    """
    try:
        return read(*about)
    except Exception:
        return None


def intrinsic(writer: Callable[..., Any]) -> Callable[..., Any]:
    """A function for compiled code whose LLVM instructions `writer` writes."""
    return cast(Callable[..., Any], numba_intrinsic(writer))


@cache
def sources() -> int:
    """A digest of all files of this package, of the files whose constants it uses, and of the kind
    of byte products: it changes when compiled code may have changed."""
    digest = sha256(DOT_PRODUCTS.encode())
    here = Path(__file__).parent
    others = [
        here.parent / name for name in ("base/arrays.py", "noise/addresses.py", "noise/philox.py")
    ]
    for file in [*sorted(here.glob("*.py")), *others]:
        digest.update(file.read_bytes())
    return int.from_bytes(digest.digest()[:6], "big")
