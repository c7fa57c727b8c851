"""Takes the weights of a transformers model on the device, or says why it is not of this pass.

Matrices that share an input become one.  The model's own parameters then are views of it, so the
weights are stored once and the model goes on working.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton

from forerun.models.llama_family import why_no_llama

OLDEST = (8, 0)
"""Compute capability from which tensor cores multiply bfloat16."""


class Layer(NamedTuple):
    """One layer; matrices are (out, in)."""

    qkv: Any
    bias: Any  # ((H + 2 KV) * HD,), or None
    head_norms: Any  # (2, HD), of queries and keys, or None
    out: Any
    gate_up: Any
    down: Any
    attention_norm: Any  # (K,)
    mlp_norm: Any  # (K,)


class Weights(NamedTuple):
    """A whole model, and its sizes."""

    layers: tuple[Layer, ...]
    embedding: Any  # (V, K)
    head: Any  # (V, K)
    norm: Any  # (K,)
    hidden: int
    inner: int
    num_heads: int
    num_key_heads: int
    head_size: int
    scaling: float
    eps: float
    head_eps: float

    @property
    def num_bytes(self) -> int:
        """Read in a pass: all but the embedding."""
        matrices = [m for layer in self.layers for m in (layer.qkv, layer.out, layer.gate_up)]
        matrices += [layer.down for layer in self.layers] + [self.head]
        return sum(matrix.numel() * matrix.element_size() for matrix in matrices)

    @property
    def group(self) -> int:
        """Query heads that share a key head."""
        return self.num_heads // self.num_key_heads


def unfit(model: Any) -> str:
    """Why the pass would not compute what this model computes; empty if it would."""
    kinds = {parameter.dtype for parameter in model.parameters()}
    places = {parameter.device for parameter in model.parameters()}
    if len(kinds) > 1 or kinds - {torch.bfloat16, torch.float16}:
        names = ", ".join(sorted(str(kind).removeprefix("torch.") for kind in kinds))
        return f"its weights are {names}, and the pass is for bfloat16 or float16"
    place = places.pop()
    if places or (place.type != "cuda" and not triton.knobs.runtime.interpret):
        return "its weights are not all on one CUDA device"
    if torch.version.hip is not None:
        return "the pass is for NVIDIA devices"
    if place.type == "cuda" and (has := torch.cuda.get_device_capability(place)) < OLDEST:
        return f"the GPU is too old: compute capability {has}, where {OLDEST} is needed"
    if reason := why_no_llama(model):
        return reason
    biases = [name for name, _ in model.named_parameters() if name.endswith(".bias")]
    if any(not name.endswith(("q_proj.bias", "k_proj.bias", "v_proj.bias")) for name in biases):
        return "it has biases besides those of queries, keys and values"
    return ""


def take(model: Any) -> Weights:
    """The weights of a model that fits."""
    with torch.inference_mode(False), torch.no_grad():  # the model may be trained afterwards
        return _take(model)


def places(model: Any) -> tuple[int, ...]:
    """Where the parameters of a model lie: other places are other weights."""
    return tuple(parameter.data_ptr() for parameter in model.parameters())


def _take(model: Any) -> Weights:
    layers = model.model.layers
    attention, mlp = layers[0].self_attn, layers[0].mlp
    size = attention.head_dim
    has_norms = hasattr(attention, "q_norm")
    return Weights(
        layers=tuple(_layer(layer) for layer in layers),
        embedding=model.model.embed_tokens.weight.data,
        head=model.lm_head.weight.data,
        norm=model.model.norm.weight.data,
        hidden=attention.q_proj.in_features,
        inner=mlp.down_proj.in_features,
        num_heads=attention.q_proj.out_features // size,
        num_key_heads=attention.k_proj.out_features // size,
        head_size=size,
        scaling=attention.scaling,
        eps=model.model.norm.variance_epsilon,
        head_eps=attention.q_norm.variance_epsilon if has_norms else 0.0,
    )


def _layer(layer: Any) -> Layer:
    attention, mlp = layer.self_attn, layer.mlp
    projections = attention.q_proj, attention.k_proj, attention.v_proj
    bias = None
    if projections[0].bias is not None:
        bias = _fused([module.bias for module in projections])
    norms = None
    if hasattr(attention, "q_norm"):
        norms = _fused([attention.q_norm.weight, attention.k_norm.weight])
    return Layer(
        qkv=_fused([module.weight for module in projections]),
        bias=bias,
        head_norms=norms,
        out=attention.o_proj.weight.data.contiguous(),
        gate_up=_fused([mlp.gate_proj.weight, mlp.up_proj.weight]),
        down=mlp.down_proj.weight.data.contiguous(),
        attention_norm=layer.input_layernorm.weight.data,
        mlp_norm=layer.post_attention_layernorm.weight.data,
    )


def _fused(parameters: Sequence[Any]) -> Any:
    """Several parameters as one tensor along their first axis, of which they become views."""
    parts = [parameter.data for parameter in parameters]
    sizes = [len(part) for part in parts]
    ends = [part.data_ptr() + part.numel() * part.element_size() for part in parts]
    starts = [part.data_ptr() for part in parts]
    shares = len({part.untyped_storage().data_ptr() for part in parts}) == 1
    if shares and starts[1:] == ends[:-1] and all(part.is_contiguous() for part in parts):
        shape = (sum(sizes), *parts[0].shape[1:])  # fused before
        return parts[0].as_strided(shape, parts[0].stride())
    whole = torch.cat(parts)
    for parameter, part in zip(parameters, whole.split(sizes), strict=True):
        parameter.data = part
    return whole
