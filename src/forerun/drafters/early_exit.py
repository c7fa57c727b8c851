"""Drafts with the first layers of the target, its head and its cache."""

from __future__ import annotations

from typing import Any

from forerun.children import Children
from forerun.drafters.from_target import FromTarget
from forerun.errors import InputError, UnsupportedError, explain
from forerun.models.base import LanguageModel


class EarlyExit(FromTarget):
    """Draft with the first `num_layers` layers; needs no second model, weights or cache.

    Pays where the first layers mostly predict the same token as all of them.
    """

    def __init__(
        self,
        num_layers: int,
        *,
        temperature: float | None = None,
        children: Children | str = Children.GREEDY_PLUS_ONE,
    ) -> None:
        if type(num_layers) is not int or num_layers < 1:
            wrong = "EarlyExit needs the number of layers to draft with."
            cure = "Use a whole number from 1 to the target's number of layers."
            raise InputError(explain(wrong, num_layers, cure))
        super().__init__(f"early-exit:{num_layers}", temperature, children)
        self.num_layers = num_layers

    def make(self, target: LanguageModel, rows: Any) -> LanguageModel:
        if not hasattr(target, "first_layers"):
            wrong = "The first layers of this target cannot be run alone."
            cure = "Use a transformers model; one loaded by name with lean=False."
            raise UnsupportedError(explain(wrong, type(target).__name__, cure))
        made: LanguageModel = target.first_layers(rows, self.num_layers)
        return made
