"""Arguments of compiled code that are taken from Python once, for many calls.

Numba looks at every array of every argument in each call.  After a pass none of them is in a core's
cache any more, and a model, its memory and a plan are dozens of arrays: taking them takes a
hundred and fifty microseconds, in each thread after the other.  Held, they are one pointer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import typeof, types
from numba.experimental import structref

from forerun.lean.jit import entry, sources


@structref.register
class HeldType(types.StructRef):  # type: ignore[misc]
    """What Numba calls a `Held`."""

    def preprocess_fields(self, fields: Any) -> Any:
        return tuple((name, types.unliteral(kind)) for name, kind in fields)


class Held(structref.StructRefProxy):  # type: ignore[misc]
    """Arguments as compiled code sees them: a tuple `value`.  It keeps their arrays alive."""


structref.define_proxy(Held, HeldType, ["value"])


def type_of_held(arguments: Any) -> HeldType:
    """What Numba calls these arguments once they are held."""
    return HeldType([("value", typeof(arguments))])


def build(revision: int) -> Callable[[Any], Held]:
    @entry
    def hold(arguments: Any) -> Held:
        """Take arguments from Python."""
        return Held(arguments)

    return hold


hold = build(sources())


class Holder:
    """Holds the arguments of one call after the other, and takes them again when one is another."""

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
