"""Describes the layers of a transformers model to our own passes, or says why it cannot.

A family is a row of a table: what the class calls its norms.  All else is read off the
configuration and the modules at hand, and a pass that is made of it is compared with transformers
before its first use.  Classes that are not in the table may do what no trial of a few tokens shows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from transformers.activations import ACT2FN

from forerun.base.errors import warn
from forerun.models.attention import layer_kinds
from forerun.models.packed import PackedLinear, PackedStack

BEFORE = ("input_layernorm", "post_attention_layernorm")
AROUND = ("input_layernorm", "pre_feedforward_layernorm")
AFTER = ("post_attention_layernorm", "post_feedforward_layernorm")


class Family(NamedTuple):
    """The names that a class of models gives to its norms, attention and MLP."""

    name: str  # for people to read
    before: tuple[str, ...] = BEFORE
    after: tuple[str, ...] = ()  # of what attention and the MLP add to the residual stream
    unit: float = 0.0  # which is added to the weights of norms
    takes_turns: bool = False  # gate and up within experts, whose matrices are (in, out)


FAMILIES = {
    "LlamaForCausalLM": Family("Llama, SmolLM"),
    "MistralForCausalLM": Family("Mistral"),
    "MinistralForCausalLM": Family("Ministral"),
    "Qwen2ForCausalLM": Family("Qwen2"),
    "Qwen3ForCausalLM": Family("Qwen3"),
    "Qwen3MoeForCausalLM": Family("Qwen3-MoE"),
    "Phi3ForCausalLM": Family("Phi-3, Phi-4"),
    "SmolLM3ForCausalLM": Family("SmolLM3"),
    "SeedOssForCausalLM": Family("Seed-OSS"),
    "GraniteForCausalLM": Family("Granite"),
    "Olmo2ForCausalLM": Family("OLMo 2", before=(), after=AFTER),
    "Olmo3ForCausalLM": Family("OLMo 3", before=(), after=AFTER),
    "Gemma2ForCausalLM": Family("Gemma 2", AROUND, AFTER, unit=1.0),
    "Gemma3ForCausalLM": Family("Gemma 3", AROUND, AFTER, unit=1.0),
    "GptOssForCausalLM": Family("gpt-oss", takes_turns=True),
}
"""The supported classes of transformers, by name, each with its family."""

LINEAR = (torch.nn.Linear, PackedLinear)
ACTIVATIONS = {"silu": "silu", "gelu_pytorch_tanh": "gelu"}
# Rotary tables that do not change with the length of the text.
FIXED_ROPE = ("default", "linear", "llama3", "yarn")


class Experts(NamedTuple):
    """How a layer chooses among experts; equal scores go to the lowest number."""

    total: int
    chosen: int  # of each token
    is_normed: bool  # the weights of those chosen add up to one; else those of all
    takes_turns: bool  # gate and up


class LayerForm(NamedTuple):
    """The properties in which layers may differ, besides their weights."""

    window: int | None = None  # keys that a token sees, its own included; None: all of them
    table: int | None = 0  # the rotary table that turns queries and keys; None: they stay
    experts: Experts | None = None  # in place of one MLP


@dataclass(frozen=True)
class Form:
    """The structure of the layers of a model, without the weights."""

    num_heads: int
    num_key_heads: int
    head_size: int
    attention_scale: float
    eps: float
    family: Family
    layers: tuple[LayerForm, ...] = (LayerForm(),)
    rotary_size: int | None = None  # dimensions of a head that are turned, the first; None: all
    num_tables: int = 1  # of rotary angles
    head_norms: str = ""  # of queries and keys: "", "head" (each alone), "width" (all together)
    has_sinks: bool = False  # a score of each head that has no value
    activation: str = "silu"  # or "gelu", or "clamped"
    clamp: tuple[float, float] = (0.0, 0.0)  # factor and limit of "clamped"
    embedding_scale: float = 1.0
    residual_scale: float = 1.0  # of what attention and the MLP add to the residual stream
    logits_scale: float = 1.0
    attention_cap: float = 0.0  # scores become cap * tanh(score / cap); 0: they do not
    logits_cap: float = 0.0
    is_fused: bool = False  # the model has one matrix for queries, keys, values; one for gate, up

    @property
    def group(self) -> int:
        """The number of query heads that share a key head."""
        return self.num_heads // self.num_key_heads

    @property
    def is_turned_in_part(self) -> bool:
        """Whether only a part of the dimensions of a head is rotated."""
        return self.rotary_size not in (None, self.head_size)

    @property
    def features(self) -> frozenset[str]:
        """The properties of the model that a Llama does not have, in words."""
        scales = self.embedding_scale, self.residual_scale, self.logits_scale
        there = {
            "sliding windows": any(layer.window for layer in self.layers),
            "layers without rotary embedding": any(layer.table is None for layer in self.layers),
            "several rotary tables": len({layer.table for layer in self.layers} - {None}) > 1,
            "heads that are turned in part": self.is_turned_in_part,
            "norms of heads": self.head_norms == "head",
            "norms of all heads together": self.head_norms == "width",
            "norms after attention and MLP": bool(self.family.after),
            "no norms before attention and MLP": not self.family.before,
            "attention sinks": self.has_sinks,
            "experts": any(layer.experts for layer in self.layers),
            "GELU": self.activation == "gelu",
            "clamped SiLU": self.activation == "clamped",
            "a scaled embedding": scales[0] != 1.0,
            "scaled sums": scales[1:] != (1.0, 1.0),
            "capped attention": self.attention_cap != 0.0,
            "capped logits": self.logits_cap != 0.0,
            "fused matrices": self.is_fused,
        }
        return frozenset(name for name, is_there in there.items() if is_there)


def form_of(model: Any) -> Form:
    """The structure of a model's layers. `why_unserved` must have found it suitable."""
    config, first = model.config, model.model.layers[0].self_attn
    kinds = layer_kinds(model)
    assert kinds is not None, "refused by why_unserved"
    tables, frequencies = _tables(model), rotary_of(model)[0]
    windows = [kind.window for kind in kinds]
    family, layers = FAMILIES[type(model).__name__], model.model.layers
    experts = [_experts(layer.mlp, family) for layer in layers]
    clamps = [layer.mlp.experts for layer in layers if hasattr(layer.mlp, "experts")][:1]
    is_clamped = any(hasattr(one, "limit") for one in clamps)
    size, embedding = first.head_dim, model.model.embed_tokens
    scale = getattr(embedding, "scalar_embed_scale", getattr(embedding, "embed_scale", 1.0))
    key_heads = config.num_key_value_heads
    return Form(
        family=family,
        layers=tuple(map(LayerForm, windows, tables, experts)),
        num_heads=config.num_attention_heads,
        num_key_heads=key_heads,
        head_size=size,
        rotary_size=2 * frequencies.shape[1],
        num_tables=len(frequencies),
        head_norms=_head_norms(first, size),
        has_sinks=hasattr(first, "sinks"),
        activation="clamped" if is_clamped else ACTIVATIONS[activation(config)],
        clamp=(clamps[0].alpha, clamps[0].limit) if is_clamped else (0.0, 0.0),
        eps=norm_eps(model.model.norm),
        attention_scale=first.scaling,
        embedding_scale=float(getattr(model.model, "embedding_multiplier", scale)),
        residual_scale=float(getattr(model.model.layers[0], "residual_multiplier", 1.0)),
        logits_scale=1.0 / getattr(config, "logits_scaling", 1.0),
        attention_cap=getattr(config, "attn_logit_softcapping", None) or 0.0,
        logits_cap=getattr(config, "final_logit_softcapping", None) or 0.0,
        is_fused=hasattr(first, "qkv_proj"),
    )


def why_unserved(model: Any, served: frozenset[str]) -> str:
    """The reason why a pass that serves these features does not compute a model; empty if it
    does."""
    try:
        reason = _why_unknown(model)
        beyond = frozenset[str]() if reason else form_of(model).features - served
    except AttributeError as error:  # another release of transformers may name its modules anew
        return f"its modules are not those that are known of its class ({error})"
    return f"it has {min(beyond)}" if beyond else reason


def _why_unknown(model: Any) -> str:
    """The reason why a model has no form; empty if it has one."""
    kind, config = type(model), model.config
    if kind.__name__ not in FAMILIES or not kind.__module__.startswith("transformers."):
        return f"it is not one of {', '.join(FAMILIES)}"
    if activation(config) not in ACTIVATIONS:
        return f"its activation is {activation(config)}"
    if layer_kinds(model) is None:
        return "some of its layers see neither the whole text nor a sliding window"
    if getattr(config, "use_bidirectional_attention", False):
        return "its tokens see later ones"
    if changing := [rope for rope in _rope_types(model) if rope not in FIXED_ROPE]:
        return f"its rotary table ({changing[0]}) changes with the text"
    return _why_changed(model)


def _why_changed(model: Any) -> str:
    """The reason why modules of a model are not those of its class; empty if they all are."""
    expected = [m for layer in model.model.layers for part in linear_parts(layer) for m in part]
    linear = [module for module in model.modules() if hasattr(module, "out_features")]
    is_whole = {*map(id, linear)} == {*map(id, expected), id(model.lm_head)}
    if not is_whole or any(type(module) not in LINEAR for module in linear):
        return "some of its linear layers were replaced"
    if any(module._forward_hooks or module._forward_pre_hooks for module in model.modules()):
        return "hooks on its layers would not be called"
    mlps = [layer.mlp for layer in model.model.layers if hasattr(layer.mlp, "experts")]
    if reasons := list(filter(None, map(_why_other_experts, mlps))):
        return reasons[0]
    if model.lm_head.out_features != model.model.embed_tokens.num_embeddings:
        return "its head and its embedding differ in vocabulary"
    if model.lm_head.bias is not None:
        return "its head has a bias"
    return _why_uneven(model)


def linear_parts(layer: Any) -> tuple[list[Any], ...]:
    """The linear layers behind each of a layer's products: queries, keys and values; attention
    output; gate and up; down. If a model has fused some, a single linear layer stands for them.
    With experts, the last two are empty."""
    attention, mlp = layer.self_attn, layer.mlp
    if hasattr(attention, "qkv_proj"):
        return [attention.qkv_proj], [attention.o_proj], [mlp.gate_up_proj], [mlp.down_proj]
    inputs = [attention.q_proj, attention.k_proj, attention.v_proj]
    if hasattr(mlp, "experts"):
        return inputs, [attention.o_proj], [], []
    return inputs, [attention.o_proj], [mlp.gate_proj, mlp.up_proj], [mlp.down_proj]


def router(mlp: Any) -> Any:
    """The module that scores the experts of a layer."""
    return mlp.gate if hasattr(mlp, "gate") else mlp.router


def _experts(mlp: Any, family: Family) -> Experts | None:
    if not hasattr(mlp, "experts"):
        return None
    made = router(mlp)
    is_normed = getattr(made, "norm_topk_prob", True)
    return Experts(made.num_experts, made.top_k, bool(is_normed), family.takes_turns)


def _why_other_experts(mlp: Any) -> str:
    """The reason why the experts of a layer are not three tensors; empty if they are."""
    for name in ("gate_up_proj", "down_proj"):
        weights = getattr(mlp.experts, name, None)
        if isinstance(weights, PackedStack):
            continue
        if not isinstance(weights, torch.nn.Parameter) or weights.dim() != 3:
            return "some of its experts were replaced"
    if not isinstance(router(mlp).weight, torch.nn.Parameter):
        return "a router was replaced"
    return ""


def _why_uneven(model: Any) -> str:
    """The reason why layers are not all as the configuration says; empty if they are."""
    layers = model.model.layers
    attentions = [layer.self_attn for layer in layers]
    if len({attention.scaling for attention in attentions}) > 1:
        return "its layers scale their attention differently"
    usual = type(ACT2FN[activation(model.config)])
    mlps = [getattr(layer.mlp, "experts", layer.mlp) for layer in layers]
    acts = [getattr(mlp, "act_fn", getattr(mlp, "activation_fn", None)) for mlp in mlps]
    if any(act is not None and type(act) is not usual for act in acts):
        return "its layers have another activation than its configuration names"
    norms = [module for module in model.modules() if type(module).__name__.endswith("RMSNorm")]
    if len({norm_eps(norm) for norm in norms}) > 1:
        return "its norms add different numbers"
    return ""


def _head_norms(attention: Any, size: int) -> str:
    if not hasattr(attention, "q_norm"):
        return ""
    return "head" if len(attention.q_norm.weight) == size else "width"


def norm_eps(norm: Any) -> float:
    """The number that a norm adds to a mean of squares."""
    return float(norm.eps if hasattr(norm, "eps") else norm.variance_epsilon)


def rotary_of(model: Any) -> tuple[Any, list[float]]:
    """The rotary tables of a model: frequencies (tables, turned dimensions / 2), float32, and the
    factors of their cosines and sines."""
    rotary = model.model.rotary_emb
    names = [f"{kind}_" if kind else "" for kind in _table_kinds(model)]
    frequencies = [getattr(rotary, f"{name}inv_freq").float() for name in names]
    return torch.stack(frequencies), [getattr(rotary, f"{name}attention_scaling") for name in names]


def _table_kinds(model: Any) -> list[str]:
    """The kinds of layers that have a table of their own; [""] if all share one."""
    return list(getattr(model.model.rotary_emb, "layer_types", [""]))


def _tables(model: Any) -> list[int | None]:
    """The index of each layer's rotary table; None for layers that are not rotated."""
    kinds, layers = _table_kinds(model), model.model.layers
    of_layers = [""] * len(layers) if kinds == [""] else model.config.layer_types
    return [
        kinds.index(kind) if getattr(layer.self_attn, "use_rope", True) else None
        for kind, layer in zip(of_layers, layers, strict=True)
    ]


def activation(config: Any) -> str:
    """The name in transformers of the activation of the MLPs."""
    name: str = getattr(config, "hidden_activation", None) or config.hidden_act
    return name


def _rope_types(model: Any) -> list[str]:
    types = model.model.rotary_emb.rope_type
    return list(types.values()) if isinstance(types, dict) else [types]


def without_lean(plain: Any, reason: str) -> Any:
    """Note on a `HuggingFaceModel` why the lean pass is not used, and return it.

    Warns the user if the model is of a family that is known.
    """
    plain.why_not_lean = reason
    if type(plain.model).__name__ in FAMILIES:
        warn(f"{plain.name} runs on transformers, not on the faster lean CPU pass: {reason}.")
    return plain
