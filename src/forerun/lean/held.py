"""Arguments of compiled code that are converted from Python once, for many calls.

Numba looks at every array of every argument in each call.  A model, its memory and a plan are
dozens of arrays, which have left the core's cache after a pass: converting them takes 150
microseconds, in one thread after the other.  A `Held` is one pointer instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import typeof, types
from numba.experimental import structref

from forerun.lean.jit import entry, sources


@structref.register
class HeldType(types.StructRef):  # type: ignore[misc]
    """Numba's type of a `Held`."""

    def preprocess_fields(self, fields: Any) -> Any:
        """Field types without literals, so that arguments of one kind have one type."""
        return tuple((name, types.unliteral(kind)) for name, kind in fields)


class Held(structref.StructRefProxy):  # type: ignore[misc]
    """A reference to a tuple `value` of arguments in compiled code, which keeps arrays alive."""


structref.define_proxy(Held, HeldType, ["value"])


def type_of_held(arguments: Any) -> HeldType:
    """Numba's type of the `Held` of these arguments."""
    return HeldType([("value", typeof(arguments))])


def build(revision: int) -> Callable[[Any], Held]:
    @entry
    def hold(arguments: Any) -> Held:
        """Convert arguments from Python for compiled code."""
        return Held(arguments)

    return hold


hold = build(sources())


class Holder:
    """Holds the arguments of successive calls; converts them again when one of them is replaced."""

    def __init__(self) -> None:
        self._arguments: tuple[Any, ...] = ()
        self._held: Held | None = None

    def __call__(self, *arguments: Any) -> Held:
        last = self._arguments
        if len(arguments) != len(last) or any(map(_differ, arguments, last)):
            self._held, self._arguments = hold(arguments), arguments
        assert self._held is not None
        return self._held


def _differ(one: Any, other: Any) -> bool:
    return one is not other
