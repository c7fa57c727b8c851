"""Models that stay in the process that loaded them."""

from __future__ import annotations

from typing import Any, NoReturn, Self, SupportsIndex

from forerun.base.errors import UnsupportedError, explain


class NotPickled:
    """A model that says what to do instead, where somebody pickles it or copies all it holds.

    Its weights lie in the memory of a process or a device, and its code was compiled for them.
    """

    name: str

    def __reduce_ex__(self, protocol: SupportsIndex, /) -> NoReturn:
        cure = "Load it in each process, with forerun.load or forerun.wrap there."
        raise self._refusal("pickled", cure)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        raise self._refusal("deeply copied", "Pass it on as it is: engines and threads share it.")

    def __copy__(self) -> Self:
        """The same weights again; without this, `copy` would ask for what `pickle` asks for."""
        other = object.__new__(type(self))
        vars(other).update(vars(self))
        return other

    def _refusal(self, done: str, cure: str) -> UnsupportedError:
        wrong = f"A loaded model stays where it is and cannot be {done}."
        return UnsupportedError(explain(wrong, f"{type(self).__name__}({self.name!r})", cure))
