"""A drafter that is a copy of the target with fewer bits per weight."""

from __future__ import annotations

from typing import Any, Literal
from weakref import WeakKeyDictionary

from forerun.base.errors import InputError, UnsupportedError, explain
from forerun.drafters.from_target import FromTarget
from forerun.models.base import LanguageModel, identity
from forerun.trees.sibling_laws import Children

WORKING = ("int8", "int4")


class Quantized(FromTarget):
    """Draft with a copy of the target whose weights have fewer bits.

    It nearly always agrees with the target, and a pass over few tokens takes little more than
    reading the weights. The copy is made once per target and kept with it.
    """

    def __init__(
        self,
        bits: Literal["int8", "int4"] = "int8",
        *,
        temperature: float | None = None,
        children: Children | str = Children.GREEDY_PLUS_ONE,
    ) -> None:
        if bits not in WORKING:
            cure = f"Use one of {WORKING}."
            raise InputError(explain("Unknown quantisation of the target.", repr(bits), cure))
        super().__init__(f"quantized:{bits}", temperature, children)
        self.bits = bits
        self._copies: WeakKeyDictionary[Any, LanguageModel] = WeakKeyDictionary()

    def make(self, target: LanguageModel, rows: Any) -> LanguageModel:
        if not hasattr(target, "rounded"):
            wrong = f"This target has no weights to round to {self.bits}."
            cure = "Use a transformers model, or another drafter."
            raise UnsupportedError(explain(wrong, type(target).__name__, cure))
        key = identity(target)
        if key not in self._copies:
            self._copies[key] = target.rounded(self.bits)
        return self._copies[key]
