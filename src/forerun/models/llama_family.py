"""Which transformers models have the shape that the lean passes compute, and how they are built.

Only what these passes compute exactly is taken: a class is listed by name, and every part that
could make it something else (a window, another activation, adapters) is looked at.
"""

from __future__ import annotations

from typing import Any

import torch

FAMILY = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
# Rotary tables that do not change with the length of the text.
FIXED_ROPE = ("default", "linear", "llama3", "yarn")


def why_other_shape(model: Any) -> str:
    """Why a model is not of this family; empty if it is."""
    kind, config = type(model), model.config
    if kind.__name__ not in FAMILY or not kind.__module__.startswith("transformers."):
        return f"it is not one of {', '.join(FAMILY)}"
    if config.hidden_act != "silu":
        return f"its activation is {config.hidden_act}"
    if any("sliding" in name for name in _layer_types(config)):
        return "some of its layers see a sliding window"
    if model.model.rotary_emb.rope_type not in FIXED_ROPE:
        return f"its rotary table ({model.model.rotary_emb.rope_type}) changes with the text"
    modules = list(model.modules())
    linear = linear_layers(model)
    is_whole = len(linear) == 7 * len(model.model.layers) + 1
    if not is_whole or any(type(module) is not torch.nn.Linear for module in linear):
        return "some of its linear layers were replaced"
    if any(module._forward_hooks or module._forward_pre_hooks for module in modules):
        return "hooks on its layers would not be called"
    if model.lm_head.out_features != model.model.embed_tokens.num_embeddings:
        return "its head and its embedding differ in vocabulary"
    return ""


def linear_layers(model: Any) -> list[Any]:
    return [module for module in model.modules() if hasattr(module, "out_features")]


def _layer_types(config: Any) -> list[str]:
    if types := getattr(config, "layer_types", None):
        return list(types)
    return ["sliding"] if getattr(config, "sliding_window", None) else []
