"""Draft models for a target that has no smaller sibling: its first layers, or a noisy copy."""

from __future__ import annotations

import copy
from typing import Any

import torch

import forerun as fr


def truncated(model: Any, num_layers: int) -> Any:
    """The first layers of a Llama-family model under its own embedding, norm and head (shared)."""
    config = copy.deepcopy(model.config)
    config.num_hidden_layers = num_layers
    draft = type(model)(config).to(model.device, model.dtype).eval()
    draft.model.layers = model.model.layers[:num_layers]
    draft.model.embed_tokens = model.model.embed_tokens
    draft.model.norm = model.model.norm
    draft.lm_head = model.lm_head
    return draft


def first_layers(target: Any, num_layers: int) -> fr.drafters.Model:
    return fr.drafters.Model(fr.wrap(truncated(target.model, num_layers), target.tokenizer))


def noisy_copy(target: Any, noise: float) -> fr.drafters.Model:
    """The target with every matrix blurred: as dear as the target, and right most of the time."""
    model = copy.deepcopy(target.model)
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 2:
                weight += noise * weight.std() * torch.randn_like(weight)
    return fr.drafters.Model(fr.wrap(model, target.tokenizer))
