"""Models the engine can score with.

Importing this package imports NumPy only; torch and transformers come with `HuggingFaceModel`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forerun.models.base import LanguageModel, State
from forerun.models.function import FunctionModel
from forerun.models.table import TableModel

__all__ = [
    "FunctionModel",
    "HuggingFaceModel",
    "LanguageModel",
    "State",
    "TableModel",
]

if TYPE_CHECKING:
    from forerun.models.huggingface import HuggingFaceModel


def __getattr__(name: str) -> type[HuggingFaceModel]:
    if name != "HuggingFaceModel":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from forerun.models.adapter import huggingface_model

    return huggingface_model()


def __dir__() -> list[str]:
    """The public names of this package."""
    return __all__
