"""Take the weights out of a transformers model, or say why this pass is not its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from forerun.base.errors import UnsupportedError, explain
from forerun.lean.architecture import (
    embedding_scale,
    gate,
    norm_eps,
    norm_weight,
    norms,
    post_norms,
    windows,
)
from forerun.lean.attention import HeadShape
from forerun.lean.formats import BLOCK
from forerun.lean.forward import Weights
from forerun.lean.linear import Floats, Matrices, alternate, join
from forerun.lean.packed import Facts, Packed
from forerun.lean.rotary import rotary_of, tables
from forerun.lean.shape import LANES
from forerun.lean.storage import padded, rounded
from forerun.models.base import endings_of, generation_defaults
from forerun.models.llama_family import linear_layers, why_other_shape

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def pack(model: Any, int8: bool = False) -> Packed:
    """All that the pass needs of a transformers model."""
    weights, config = take(model, int8), model.config
    return Packed(
        weights=weights,
        rotary=rotary_of(model),
        facts=Facts(
            kind=config.model_type,
            num_parameters=model.num_parameters(),
            vocab_size=config.vocab_size,
            max_context=config.max_position_embeddings,
            hidden_size=config.hidden_size,
            num_layers=config.num_hidden_layers,
            endings=list(endings_of(model)),
            defaults=generation_defaults(model),
            is_rounded=int8,
        ),
    )


def take(model: Any, int8: bool = False) -> Weights:
    """The weights, copied into panels; rounded to 8 bits and a scale per block if asked."""
    if reason := unfit(model, int8):
        raise UnsupportedError(
            explain(
                f"The lean CPU pass does not fit this model: {reason}.",
                type(model).__name__,
                "Use the plain path: lean=False, or forerun.wrap(model).",
            )
        )
    layers = model.model.layers
    attention = layers[0].self_attn
    size = attention.head_dim
    has_norms = hasattr(attention, "q_norm")
    heads = HeadShape(
        queries=attention.q_proj.out_features // size,
        keys=attention.k_proj.out_features // size,
        size=size,
        wide=padded(size),
        scale=np.float32(attention.scaling),
        has_norms=has_norms,
        eps=norm_eps(attention.q_norm) if has_norms else np.float32(0),
    )
    pairs = [(x.self_attn.q_norm, x.self_attn.k_norm) if has_norms else () for x in layers]
    return Weights(
        matrices=_matrices(model, int8),
        embedding=as_array(model.model.embed_tokens.weight),
        embedding_scale=embedding_scale(model),
        norms=norms(model),
        post_norms=post_norms(model),
        head_norms=np.stack(
            [[norm_weight(n) for n in pair] or np.ones((2, size), np.float32) for pair in pairs]
        ),
        heads=heads,
        windows=windows(model),
        tables=tables(model),
        gate=gate(model),
        eps=norm_eps(model.model.norm),
    )


def unfit(model: Any, int8: bool = False) -> str:
    """Why the pass would not compute what this model computes; empty if it would."""
    if any(p.dtype not in DTYPES or p.device.type != "cpu" for p in model.parameters()):
        return 'its weights are not all 32 or 16 bits on the CPU (dtype="float32" makes them so)'
    if reason := why_other_shape(model):
        return reason
    if int8 and any(module.in_features % BLOCK for module in linear_layers(model)):
        return f"its layers are not multiples of {BLOCK} wide, the blocks of int8"
    return ""


def _matrices(model: Any, int8: bool) -> Matrices:
    """All matrices in the order a pass uses them."""
    parts = [part for layer in model.model.layers for part in _layer_matrices(layer)]
    parts.append(((model.lm_head,), False))
    return join(_together(*part, int8) for part in parts)


def _together(
    modules: tuple[Any, ...], takes_turns: bool, int8: bool
) -> tuple[list[Floats], Floats]:
    """Several linear layers with one input as one matrix, in pieces, and its biases."""
    both = alternate if takes_turns else _stack
    pieces = [as_array(module.weight) for module in modules]
    if takes_turns or any(len(piece) % LANES for piece in pieces[:-1]):
        pieces = [both(*pieces)]
    if int8:
        pieces = [rounded(piece) for piece in pieces]
    return pieces, both(*[_bias(module) for module in modules])


def _layer_matrices(layer: Any) -> list[tuple[tuple[Any, ...], bool]]:
    """The modules that are one matrix, and whether their panels take turns."""
    attention, mlp = layer.self_attn, layer.mlp
    return [
        ((attention.q_proj, attention.k_proj, attention.v_proj), False),
        ((attention.o_proj,), False),
        ((mlp.gate_proj, mlp.up_proj), True),
        ((mlp.down_proj,), False),
    ]


def _stack(*arrays: Floats) -> Floats:
    return np.concatenate(arrays)


def _bias(module: Any) -> Floats:
    if module.bias is None:
        return np.zeros(module.out_features, np.float32)
    return as_array(module.bias)


def as_array(tensor: Any) -> Floats:
    """A tensor as float32, which holds every 16-bit number exactly."""
    return np.ascontiguousarray(tensor.detach().float().numpy())
