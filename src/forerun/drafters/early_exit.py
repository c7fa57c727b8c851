"""Drafts with the first layers of the target, its head and its cache."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from forerun.base.errors import InputError, UnsupportedError, explain
from forerun.drafters.depth import best_depth
from forerun.drafters.from_target import FromTarget
from forerun.models.base import LanguageModel, identity
from forerun.trees.sibling_laws import Children


class EarlyExit(FromTarget):
    """Draft with the first `num_layers` layers; needs no second model, weights or cache.

    num_layers: None takes what promises the most for each target: the first time, a few passes
        over a sample text tell how often the first layers predict what all of them do.

    Pays where the first layers mostly predict the same token as all of them.
    """

    def __init__(
        self,
        num_layers: int | None = None,
        *,
        temperature: float | None = None,
        children: Children | str = Children.GREEDY_PLUS_ONE,
    ) -> None:
        if num_layers is not None and (type(num_layers) is not int or num_layers < 1):
            wrong = "EarlyExit needs the number of layers to draft with."
            cure = "Use a whole number from 1 to the target's number of layers, or None."
            raise InputError(explain(wrong, repr(num_layers), cure))
        name = "early-exit" if num_layers is None else f"early-exit:{num_layers}"
        super().__init__(name, temperature, children)
        self.num_layers = num_layers
        self._depths: WeakKeyDictionary[Any, int] = WeakKeyDictionary()

    def make(self, target: LanguageModel, rows: Any) -> LanguageModel:
        if not hasattr(target, "first_layers"):
            wrong = "The first layers of this target cannot be run alone."
            cure = "Use a transformers model; one loaded by name with lean=False."
            raise UnsupportedError(explain(wrong, type(target).__name__, cure))
        made: LanguageModel = target.first_layers(rows, self.depth(target))
        return made

    def depth(self, target: Any) -> int:
        """The number of layers that draft for this target."""
        if self.num_layers is not None:
            return self.num_layers
        key = identity(target)
        if key not in self._depths:
            self._depths[key] = best_depth(target)
        return self._depths[key]
