"""Models that stay in the process that loaded them."""

from __future__ import annotations

from typing import Any, NoReturn, Self, SupportsIndex

from forerun.base.errors import UnsupportedError, explain


class NotPickled:
    """The base of models that refuse to be pickled or deeply copied, with a cure in the error.

    Their weights lie in the memory of a process or a device, and their code is compiled for them.
    """

    name: str

    def __reduce_ex__(self, protocol: SupportsIndex, /) -> NoReturn:
        cure = "Load it in each process, with forerun.load or forerun.wrap there."
        raise self._refusal("pickled", cure)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        raise self._refusal("deeply copied", "Pass it on as it is: engines and threads share it.")

    def __copy__(self) -> Self:
        """A model with the same weights; without this method, `copy` would call `__reduce_ex__`."""
        other = object.__new__(type(self))
        vars(other).update(vars(self))
        return other

    def _refusal(self, done: str, cure: str) -> UnsupportedError:
        wrong = f"A loaded model stays where it is and cannot be {done}."
        return UnsupportedError(explain(wrong, f"{type(self).__name__}({self.name!r})", cure))
