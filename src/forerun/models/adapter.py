"""The adapter for transformers' models, or how to install what it needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forerun.base.errors import MissingExtraError, explain

if TYPE_CHECKING:
    from forerun.models.huggingface import HuggingFaceModel

NEEDED = ("torch", "transformers")


def huggingface_model() -> type[HuggingFaceModel]:
    """The adapter class, imported on first use: torch and transformers are an optional extra."""
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
