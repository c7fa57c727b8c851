"""Whatever can be a model, as a `LanguageModel`.

Drafters take models of any kind.  Loading stands above them and registers how it wraps one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from forerun.models.base import LanguageModel

_converters: list[Callable[[Any], LanguageModel]] = []


def register(convert: Callable[[Any], LanguageModel]) -> None:
    """Let `as_model` use this function, which raises for what is no model."""
    _converters[:] = [convert]


def as_model(given: Any) -> LanguageModel:
    """What the registered function makes of an object; a `LanguageModel` stays itself."""
    return _converters[0](given)
