"""A draft model for a target that has no smaller sibling: its own first layers."""

from __future__ import annotations

import copy
from typing import Any

import forerun as fr


def truncated(model: Any, num_layers: int) -> Any:
    """The first layers of a Llama-family model under its own embedding, norm and head (shared)."""
    config = copy.deepcopy(model.config)
    config.num_hidden_layers = num_layers
    draft = type(model)(config).to(model.dtype).eval()
    draft.model.layers = model.model.layers[:num_layers]
    draft.model.embed_tokens = model.model.embed_tokens
    draft.model.norm = model.model.norm
    draft.lm_head = model.lm_head
    return draft


def first_layers(target: Any, num_layers: int) -> fr.drafters.Model:
    return fr.drafters.Model(fr.wrap(truncated(target.model, num_layers), target.tokenizer))
