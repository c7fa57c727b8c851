"""How this package compiles: the flags in one place, and types that survive the decorators."""

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

# Products may be fused with sums, and nothing may be reordered: see the package's last promise.
ORDERED = frozenset({"contract", "nnan", "ninf", "nsz"})
# A division that may raise keeps its loop from vectorising.
COMMON: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
UNCOUNTED: dict[str, Any] = {**COMMON, "_nrt": False}


class Timekeeper(Listener):  # type: ignore[misc]
    """Stops the clock of rounds while Numba compiles.

    A function is compiled within the compilation of another that calls it, and under a lock that
    one thread has at a time.
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
    """Machine code on first call, run without the GIL and without counting references.

    Numba counts who uses an array whenever a view of it is taken, in memory that all threads write
    to; for a panel that costs as much as its products.  Nothing depends on these counts here: the
    caller of an `entry` holds all arrays until it returns, and a view never outlives the call that
    took it.  An array that was made inside would never be freed, so Numba refuses to compile a
    function of this kind that makes one: that takes `counted`.
    """
    return cast(Function, numba.njit(fastmath=set(ORDERED), **UNCOUNTED)(function))


def inner(function: Function) -> Function:
    """`compiled`, and only for compiled code to call.

    What would take its arguments from Python is not compiled: for tuples of many arrays that saves
    a tenth of the time to compile a pass.  A call from Python would crash.
    """
    options = {**UNCOUNTED, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return cast(Function, numba.njit(fastmath=set(ORDERED), **options)(function))


def counted(function: Function) -> Function:
    """`compiled`, for what makes arrays.  Only an `entry` or another of this kind may be given
    one: others would not free it."""
    return cast(Function, numba.njit(fastmath=set(ORDERED), _nrt=True, **COMMON)(function))


def inlined(function: Function) -> Function:
    """`compiled` into its caller only: what calls the tile would otherwise be compiled twice."""
    options = {**UNCOUNTED, "fastmath": set(ORDERED), "inline": "always"}
    return cast(Function, numba.njit(**options)(function))


def reordered(function: Function) -> Function:
    """`compiled`, for reductions over one token's numbers: they only vectorise if reordered."""
    return cast(Function, numba.njit(fastmath=True, **UNCOUNTED)(function))


def reordered_with_infinities(function: Function) -> Function:
    """`reordered`, for numbers that may be infinite; what comes out is so in any order."""
    flags = {"nnan", "nsz", "reassoc"}
    return cast(Function, numba.njit(fastmath=flags, **UNCOUNTED)(function))


def entry(function: Function) -> Function:
    """`counted`, and kept on disk for the next process.

    Numba looks for changes only in the file of the function itself, so the function must be a
    closure over `sources()`: closed-over values are part of its key.
    """
    return kept(function, fastmath=set(ORDERED))


def exact_entry(function: Function) -> Function:
    """Kept on disk too, with arithmetic to the letter; it may depend on nothing but its file, or
    is a closure over `sources()` like an `entry`."""
    return kept(function)


def kept(function: Function, **options: Any) -> Function:
    """On disk beside this package or in the user's cache; nowhere, if neither can be written."""
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
    """Whether an `entry` of this version is kept for this processor, whatever its arguments; and
    if Numba does not tell: nothing may depend on that."""
    try:
        cache = function._cache
        _, *about = cache._index_key(None, function.targetctx.codegen())
        return any(list(key[1:]) == about for key in cache._cache_file._load_index())
    except Exception:
        return True


def _unless_damaged(read: Callable[..., Any], *about: Any) -> Any:
    """What is read from the disk, or None: then it is compiled, and written, again.

    An index of another version may name types that are gone, and Numba looks for these before it
    sees that the version is another.
    """
    try:
        return read(*about)
    except Exception:
        return None


def intrinsic(writer: Callable[..., Any]) -> Callable[..., Any]:
    """What `writer` writes in LLVM instructions, as a function for compiled code."""
    return cast(Callable[..., Any], numba_intrinsic(writer))


@cache
def sources() -> int:
    """A number that changes when any file of this package does, or one whose constants it has, or
    the kind of products."""
    digest = sha256(DOT_PRODUCTS.encode())
    here = Path(__file__).parent
    others = [
        here.parent / name for name in ("base/arrays.py", "noise/addresses.py", "noise/philox.py")
    ]
    for file in [*sorted(here.glob("*.py")), *others]:
        digest.update(file.read_bytes())
    return int.from_bytes(digest.digest()[:6], "big")
