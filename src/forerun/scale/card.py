"""What an ingress knows of its replicas' model: everything but the weights."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from forerun.models.base import LanguageModel
from forerun.serve.fingerprint import model_digest


@dataclass(frozen=True)
class ModelCard:
    """Stands for the model where requests are read and answers are worded."""

    name: str
    vocab_size: int
    max_context: int | None
    tokenizer: Any
    model: Any  # with the settings that the real one has: `config` and `generation_config`
    digest: str  # equal where the same seed gives the same text


def card_of(target: LanguageModel) -> ModelCard:
    inner = getattr(target, "model", None)
    settings = {
        name: getattr(inner, name)
        for name in ("config", "generation_config")
        if hasattr(inner, name)
    }
    return ModelCard(
        target.name,
        target.vocab_size,
        target.max_context,
        getattr(target, "tokenizer", None),
        SimpleNamespace(**settings),
        model_digest(target),
    )
