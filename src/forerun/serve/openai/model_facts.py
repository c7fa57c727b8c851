"""What an ingress knows of its replicas' model: everything but the weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from forerun.models.base import LanguageModel
from forerun.serve.openai.defaults import defaults_of
from forerun.serve.openai.fingerprint import model_digest


@dataclass(frozen=True)
class ModelCard:
    """Stands for the model where requests are read and answers are worded."""

    name: str
    vocab_size: int
    max_context: int | None
    tokenizer: Any
    generation_defaults: dict[str, float]
    digest: str  # equal where the same seed gives the same text


def card_of(target: LanguageModel) -> ModelCard:
    return ModelCard(
        target.name,
        target.vocab_size,
        target.max_context,
        getattr(target, "tokenizer", None),
        defaults_of(target),
        model_digest(target),
    )
