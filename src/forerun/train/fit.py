"""Checks that a drafter can be trained for a target."""

from __future__ import annotations

from typing import Any

import torch

from forerun.errors import UnsupportedError, explain
from forerun.models.attention import layer_kinds


def check_trainable(model: Any) -> None:
    """Requires full attention in every layer, and logits that are linear in the last state."""
    kinds = layer_kinds(model.config)
    kind = type(model).__name__
    cure = "Use a model of the Llama family."
    if kinds is None or any(layer.window is not None for layer in kinds):
        wrong = "Drafters are trained for models with full attention in every layer."
        raise UnsupportedError(explain(wrong, kind, cure))
    head = model.get_output_embeddings()
    with torch.no_grad():
        tokens = torch.arange(4, device=model.device)[None]
        logits = model(input_ids=tokens, use_cache=False).logits
        states = model.base_model(input_ids=tokens, use_cache=False).last_hidden_state
        alike = head is not None and torch.allclose(head(states), logits, rtol=1e-2, atol=1e-2)
    if not alike:
        wrong = "Drafters are trained for models whose logits are a linear map of their states."
        raise UnsupportedError(explain(wrong, kind, cure))
