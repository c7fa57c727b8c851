"""Turns objects into `LanguageModel`s: the adapter for transformers, and a registered converter.

Drafters take models of any kind.  Loading stands above them and registers how it wraps a model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from forerun.base.errors import MissingExtraError, explain
from forerun.models.base import LanguageModel

if TYPE_CHECKING:
    from forerun.models.huggingface import HuggingFaceModel

_converters: list[Callable[[Any], LanguageModel]] = []

NEEDED = ("torch", "transformers")


def huggingface_model() -> type[HuggingFaceModel]:
    """The class `HuggingFaceModel`, imported on first use because it needs an optional extra.

    Raises MissingExtraError in an environment without torch or transformers.
    """
    try:
        from forerun.models.huggingface import HuggingFaceModel
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in NEEDED:
            raise
        raise missing(error.name or "") from error
    return HuggingFaceModel


def missing(module: str) -> MissingExtraError:
    """The error for an environment without torch or transformers."""
    wrong = "Hugging Face models need torch and transformers."
    cure = 'Install them with: pip install "forerun[hf]"'
    return MissingExtraError(explain(wrong, f"an environment without {module}", cure))


def register(convert: Callable[[Any], LanguageModel]) -> None:
    """Let `as_model` use this function, which raises an error for objects that are no models."""
    _converters[:] = [convert]


def as_model(given: Any) -> LanguageModel:
    """The model that the registered function makes of an object; a `LanguageModel` is returned
    unchanged."""
    return _converters[0](given)
