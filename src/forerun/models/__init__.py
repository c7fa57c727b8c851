"""Models the engine can score with.

Importing this package imports NumPy only; torch and transformers come with `HuggingFaceModel`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forerun.models.base import LanguageModel as LanguageModel
from forerun.models.base import State as State
from forerun.models.function import FunctionModel as FunctionModel
from forerun.models.load import load as load
from forerun.models.load import wrap as wrap
from forerun.models.table import TableModel as TableModel

if TYPE_CHECKING:
    from forerun.models.huggingface import HuggingFaceModel as HuggingFaceModel


def __getattr__(name: str) -> type[HuggingFaceModel]:
    if name != "HuggingFaceModel":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from forerun.models.load import huggingface_model

    return huggingface_model()
