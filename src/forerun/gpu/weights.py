"""Takes the weights of a transformers model on the device, or says why this pass cannot run it.

Matrices that share an input become one.  The model's own parameters then are views of it, so the
weights are stored once and the model goes on working.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
import triton

from forerun.models.families import (
    Experts,
    Family,
    Form,
    LayerForm,
    form_of,
    linear_parts,
    router,
    why_unserved,
)
from forerun.models.packed import (
    Packed,
    PackedLinear,
    PackedStack,
    bytes_of,
    packed_parts,
    stacked,
)

OLDEST = (8, 0)
"""The compute capability from which tensor cores multiply bfloat16 numbers."""


SERVED = frozenset(
    {
        "sliding windows",
        "layers without rotary embedding",
        "several rotary tables",
        "heads that are turned in part",
        "norms of heads",
        "norms of all heads together",
        "norms after attention and MLP",
        "no norms before attention and MLP",
        "GELU",
        "a scaled embedding",
        "scaled sums",
        "capped attention",
        "capped logits",
        "fused matrices",
        "attention sinks",
        "experts",
        "clamped SiLU",
    }
)
"""The features beyond those of a Llama that the pass supports (names as in `Form.features`)."""


class ExpertWeights(NamedTuple):
    """The experts of a layer."""

    form: Experts
    router: Any  # (E, K)
    router_bias: Any  # (E,), or None
    gate_up: Any  # (E, 2 I, K); packed: (E * 2 I, K)
    gate_up_bias: Any  # (E, 2 I), or None
    down: Any  # (E, K, I); packed: (E * K, I)
    down_bias: Any  # (E, K), or None

    @property
    def inner(self) -> int:
        return int(self.down.shape[-1])

    @property
    def num_bytes(self) -> int:
        """The bytes that are read for one token."""
        experts = bytes_of(self.gate_up) + bytes_of(self.down)
        return experts * self.form.chosen // self.form.total + bytes_of(self.router)


class Layer(NamedTuple):
    """The weights of one layer; matrices are (out, in). Parts that the layer does not have are
    None."""

    qkv: Any  # or three, of queries, keys and values, where they are stored in several formats
    out: Any
    gate_up: Any = None  # with experts there is none
    down: Any = None
    attention_norm: Any = None  # (K,), before attention
    mlp_norm: Any = None  # (K,), before the MLP
    attention_after: Any = None  # (K,), of what attention adds to the residual stream
    mlp_after: Any = None  # (K,), of what the MLP adds to it
    head_norms: Any = None  # (2 * HD,), of a query and a key, or ((H + KV) * HD,), of all of them
    sinks: Any = None  # (H,), scores without a value
    qkv_bias: Any = None  # ((H + 2 KV) * HD,)
    out_bias: Any = None  # (K,)
    gate_up_bias: Any = None
    down_bias: Any = None  # (K,)
    experts: ExpertWeights | None = None


class Weights(NamedTuple):
    """The weights of a whole model."""

    layers: tuple[Layer, ...]
    embedding: Any  # (V, K)
    head: Any  # (V, K)
    norm: Any  # (K,)
    form: Form

    @property
    def hidden(self) -> int:
        """The size of a hidden state."""
        return int(self.embedding.shape[1])

    @property
    def inner(self) -> int:
        """The widest MLP of all layers."""
        downs = [layer.down for layer in self.layers if layer.down is not None]
        return max((int(down.shape[1]) for down in downs), default=0)

    @property
    def eps(self) -> float:
        """The number that norms add to a mean of squares."""
        return self.form.eps

    @property
    def num_bytes(self) -> int:
        """The bytes that a pass of one token reads: everything but the embedding and the experts
        that it does not use."""
        experts = [layer.experts.num_bytes for layer in self.layers if layer.experts is not None]
        return sum(map(bytes_of, [*self._matrices, self.head])) + sum(experts)

    @property
    def largest_packed(self) -> int:
        """The number of weights in the largest few-bit matrix of a layer; 0 if there is none."""
        packed = [matrix.shape for matrix in self._matrices if isinstance(matrix, Packed)]
        return max((rows * depth for rows, depth in packed), default=0)

    @property
    def _matrices(self) -> list[Any]:
        found = [matrix for layer in self.layers for matrix in layer[:4] if matrix is not None]
        several = ([each] if not isinstance(each, tuple) else each for each in found)
        return [matrix for matrices in several for matrix in matrices]


def unfit(model: Any) -> str:
    """The reason why the pass would not compute what this model computes; empty if it would."""
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
    return why_unserved(model, SERVED)


def take(model: Any) -> Weights:
    """Collect the weights of a model that this pass supports."""
    with torch.inference_mode(False), torch.no_grad():  # the model may be trained afterwards
        return _take(model)


def places(model: Any) -> tuple[int, ...]:
    """The addresses of a model's parameters; if they change, so have the weights."""
    found = [parameter.data_ptr() for parameter in model.parameters()]
    return (*found, *(matrix.words.data_ptr() for matrix in packed_parts(model)))


def _take(model: Any) -> Weights:
    form, embedding = form_of(model), model.model.embed_tokens.weight.data
    scale = torch.tensor(form.embedding_scale).to(embedding.dtype)  # as transformers rounds it
    return Weights(
        layers=tuple(map(partial(_layer, form.family), model.model.layers, form.layers)),
        embedding=embedding, head=_matrix([model.lm_head]), norm=model.model.norm.weight.data,
        form=replace(form, embedding_scale=float(scale)),
    )  # fmt: skip


def _layer(family: Family, layer: Any, form: LayerForm) -> Layer:
    attention, parts = layer.self_attn, linear_parts(layer)
    before, after = (
        [getattr(layer, name).weight.data for name in names] or [None, None]
        for names in (family.before, family.after)
    )
    head_norms = None
    if hasattr(attention, "q_norm"):
        head_norms = _fused([attention.q_norm.weight, attention.k_norm.weight])
    matrices = [_matrix(part) if part else None for part in parts]
    sinks, biases = getattr(attention, "sinks", None), map(_biases, parts)
    experts = None if form.experts is None else _experts(layer.mlp, form.experts)
    return Layer._make([*matrices, *before, *after, head_norms, sinks, *biases, experts])


def _experts(mlp: Any, form: Experts) -> ExpertWeights:
    made, source = mlp.experts, router(mlp)
    gate_up, down = (
        weights.matrix
        if isinstance(weights, PackedStack)
        else (_turned if form.takes_turns else _whole)(weights)
        for weights in (made.gate_up_proj, made.down_proj)
    )
    return ExpertWeights(
        form=form, router=source.weight.data.contiguous(),
        router_bias=getattr(source, "bias", None), gate_up=gate_up,
        gate_up_bias=getattr(made, "gate_up_proj_bias", None), down=down,
        down_bias=getattr(made, "down_proj_bias", None),
    )  # fmt: skip


def _whole(parameter: Any) -> Any:
    """Tensors of a parameter, joined side by side."""
    parameter.data = parameter.data.contiguous()
    return parameter.data


def _turned(parameter: Any) -> Any:
    """A parameter (E, in, out) transposed to (E, out, in); the parameter becomes a view of the
    result."""
    whole = parameter.data.transpose(1, 2).contiguous()
    parameter.data = whole.transpose(1, 2)
    return whole


def _biases(modules: Sequence[Any]) -> Any:
    """The joined biases of linear layers that make one product; None if they have none."""
    if not modules or modules[0].bias is None:
        return None
    return _fused([module.bias for module in modules])


def _matrix(layers: Sequence[Any]) -> Any:
    """The weights of linear layers that are computed as one product, stacked by rows; queries, keys
    and values remain a tuple if their formats differ."""
    packed = [layer.matrix for layer in layers if isinstance(layer, PackedLinear)]
    if not packed:
        return _fused([layer.weight for layer in layers])
    if len(packed) == len(layers) and all(matrix.is_alike(packed[0]) for matrix in packed):
        return stacked(packed)
    if len(layers) == 3:
        return tuple(
            layer.matrix if isinstance(layer, PackedLinear) else layer.weight.data
            for layer in layers
        )
    return torch.cat([layer.weight.data for layer in layers])


def _fused(parameters: Sequence[Any]) -> Any:
    """Several parameters joined along their first axis; they become views of the result."""
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
