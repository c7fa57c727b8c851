"""What differs between the architectures that this pass computes, read off a transformers model."""

from __future__ import annotations

from typing import Any

import numpy as np

from forerun.lean.attention import UNLIMITED
from forerun.lean.linear import GELU_TANH, SILU, Floats, Gate
from forerun.lean.plan import Ints
from forerun.models.attention import layer_kinds
from forerun.models.llama_family import activation, is_gemma

GATES = {"silu": SILU, "gelu_pytorch_tanh": GELU_TANH}


def gate(model: Any) -> Gate:
    """The activation of the MLPs."""
    return GATES[activation(model.config)]


def norm_weight(norm: Any) -> Floats:
    """What a norm multiplies by (size,); Gemma keeps it less one."""
    weight = norm.weight.detach().float()
    return np.ascontiguousarray((1.0 + weight if is_gemma(norm) else weight).numpy())


def norm_eps(norm: Any) -> Any:
    """What a norm adds to the mean square, as float32."""
    return np.float32(norm.eps if is_gemma(norm) else norm.variance_epsilon)


def norms(model: Any) -> Floats:
    """(2 * layers + 1, hidden): before attention and before the MLP of each layer, and the last."""
    before_mlp = "pre_feedforward_layernorm" if is_gemma(model) else "post_attention_layernorm"
    pairs = [(layer.input_layernorm, getattr(layer, before_mlp)) for layer in model.model.layers]
    return np.stack([norm_weight(norm) for norm in (*sum(pairs, ()), model.model.norm)])


def post_norms(model: Any) -> Floats:
    """(2 * layers, hidden): of what attention and the MLP add; (0, hidden) where that is added as
    it is."""
    if not is_gemma(model):
        return np.empty((0, model.config.hidden_size), np.float32)
    layers = model.model.layers
    pairs = [(layer.post_attention_layernorm, layer.post_feedforward_layernorm) for layer in layers]
    return np.stack([norm_weight(norm) for norm in sum(pairs, ())])


def embedding_scale(model: Any) -> Any:
    """What embeddings are multiplied by, as float32."""
    return np.float32(float(getattr(model.model.embed_tokens, "embed_scale", 1.0)))


def windows(model: Any) -> Ints:
    """(layers,): how many tokens a token sees, itself included."""
    kinds = layer_kinds(model)
    assert kinds is not None, "refused by why_other_shape"
    return np.array([kind.window or UNLIMITED for kind in kinds])
