"""Finds out whether a transformers model has the architecture that our own passes compute.

Only models that these passes compute exactly are accepted: the class must be listed by name, and
every part that could change the results (another activation, adapters, a cap on logits) is checked.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.activations import ACT2FN

from forerun.base.errors import warn
from forerun.models.attention import layer_kinds

LLAMAS = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
FAMILY = (*LLAMAS, "Gemma3ForCausalLM")
ACTIVATIONS = ("silu", "gelu_pytorch_tanh")
# Rotary tables that do not change with the length of the text.
FIXED_ROPE = ("default", "linear", "llama3", "yarn")


def why_no_llama(model: Any) -> str:
    """The reason why a model is not a Llama that sees its whole text; empty if it is one."""
    if reason := why_other_shape(model, LLAMAS):
        return reason
    if activation(model.config) != "silu":
        return f"its activation is {activation(model.config)}"
    if any(kind.window for kind in layer_kinds(model) or ()):
        return "some of its layers see a sliding window"
    return ""


def why_other_shape(model: Any, family: tuple[str, ...] = FAMILY) -> str:
    """The reason why a model does not belong to this family; empty if it does."""
    kind, config = type(model), model.config
    if kind.__name__ not in family or not kind.__module__.startswith("transformers."):
        return f"it is not one of {', '.join(family)}"
    if activation(config) not in ACTIVATIONS:
        return f"its activation is {activation(config)}"
    if layer_kinds(model) is None:
        return "some of its layers see neither the whole text nor a sliding window"
    for name in ("attn_logit_softcapping", "final_logit_softcapping"):
        if getattr(config, name, None) is not None:
            return f"its logits are capped ({name})"
    if getattr(config, "use_bidirectional_attention", False):
        return "its tokens see later ones"
    if changing := [rope for rope in _rope_types(model) if rope not in FIXED_ROPE]:
        return f"its rotary table ({changing[0]}) changes with the text"
    return _why_changed(model)


def _why_changed(model: Any) -> str:
    """The reason why modules of a model are not those of its class; empty if they all are."""
    modules = list(model.modules())
    linear = linear_layers(model)
    is_whole = len(linear) == 7 * len(model.model.layers) + 1
    if not is_whole or any(type(module) is not torch.nn.Linear for module in linear):
        return "some of its linear layers were replaced"
    if any(module._forward_hooks or module._forward_pre_hooks for module in modules):
        return "hooks on its layers would not be called"
    if model.lm_head.out_features != model.model.embed_tokens.num_embeddings:
        return "its head and its embedding differ in vocabulary"
    return _why_uneven(model)


def _why_uneven(model: Any) -> str:
    """The reason why layers are not all as the configuration says; empty if they are."""
    attentions = [layer.self_attn for layer in model.model.layers]
    if len({attention.scaling for attention in attentions}) > 1:
        return "its layers scale their attention differently"
    usual = type(ACT2FN[activation(model.config)])
    if any(type(layer.mlp.act_fn) is not usual for layer in model.model.layers):
        return "its layers have another activation than its configuration names"
    norms = [module for module in model.modules() if type(module).__name__.endswith("RMSNorm")]
    if len({getattr(norm, "variance_epsilon", None) or norm.eps for norm in norms}) > 1:
        return "its norms add different numbers"
    tables = [table for name, table in model.model.rotary_emb.named_buffers() if "inv_freq" in name]
    if any(table.numel() != attentions[0].head_dim // 2 for table in tables):
        return "it turns only part of each head"
    return ""


def is_gemma(module: Any) -> bool:
    """Whether a model or a norm is Gemma's."""
    return type(module).__name__.startswith("Gemma")


def activation(config: Any) -> str:
    """The name in transformers of the activation of the MLPs."""
    name: str = getattr(config, "hidden_activation", None) or config.hidden_act
    return name


def linear_layers(model: Any) -> list[Any]:
    """All linear layers of a model."""
    return [module for module in model.modules() if hasattr(module, "out_features")]


def _rope_types(model: Any) -> list[str]:
    types = model.model.rotary_emb.rope_type
    return list(types.values()) if isinstance(types, dict) else [types]


def without_lean(plain: Any, reason: str) -> Any:
    """Note on a `HuggingFaceModel` why the lean pass is not used, and return it.

    Warns the user if the model is of the Llama family.
    """
    plain.why_not_lean = reason
    if type(plain.model).__name__ in FAMILY:
        warn(f"{plain.name} runs on transformers, not on the faster lean CPU pass: {reason}.")
    return plain
