"""Takes the weights out of a transformers model, or says why the lean pass cannot compute it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from forerun.base.errors import UnsupportedError, explain
from forerun.lean.attention import UNLIMITED, HeadShape
from forerun.lean.formats import BLOCK
from forerun.lean.forward import Weights
from forerun.lean.from_files import Description, no_matrices
from forerun.lean.joining import Part, join
from forerun.lean.linear import GELU_TANH, SILU, Floats, Gate, Matrices
from forerun.lean.packed import Facts, Packed, rotary_of, tables
from forerun.lean.plan import Ints
from forerun.lean.storage import padded, rounded
from forerun.models.attention import layer_kinds
from forerun.models.base import endings_of, generation_defaults
from forerun.models.llama_family import activation, is_gemma, linear_layers, why_other_shape

GATES = {"silu": SILU, "gelu_pytorch_tanh": GELU_TANH}

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def pack(model: Any, int8: bool = False) -> Packed:
    """The weights and facts of a transformers model, as the lean pass runs it.

    int8: round linear weights to 8 bits.  Raises if `unfit` has a reason against the model.
    """
    check_fits(model, int8)
    embedding = as_array(model.model.embed_tokens.weight)
    return _packed(model, _matrices(model, int8), embedding, int8)


def described(model: Any) -> Description:
    """The same without linear layers and embedding, of which `model` needs no values."""
    matrices = no_matrices(np.concatenate([_bias(x) for xs, _ in _modules(model) for x in xs]))
    names = {module: f"{name}.weight" for name, module in model.named_modules()}
    layers = [([names[module] for module in each], turns) for each, turns in _modules(model)]
    embedding = np.empty((0, model.config.hidden_size), np.float32)
    return Description(_packed(model, matrices, embedding, is_rounded=False), layers)


def _packed(model: Any, matrices: Matrices, embedding: Floats, is_rounded: bool) -> Packed:
    config = model.config
    return Packed(
        weights=_weights(model, matrices, embedding),
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
            is_rounded=is_rounded,
        ),
    )


def check_fits(model: Any, int8: bool = False) -> None:
    """Raise if `unfit` has a reason against the model."""
    if reason := unfit(model, int8):
        raise UnsupportedError(
            explain(
                f"The lean CPU pass does not fit this model: {reason}.",
                type(model).__name__,
                "Use the plain path: lean=False, or forerun.wrap(model).",
            )
        )


def _weights(model: Any, matrices: Matrices, embedding: Floats) -> Weights:
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
        matrices=matrices,
        embedding=embedding,
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
    """The reason why the lean pass cannot compute this model; empty if it can."""
    if any(p.dtype not in DTYPES or p.device.type != "cpu" for p in model.parameters()):
        return 'its weights are not all 32 or 16 bits on the CPU (dtype="float32" makes them so)'
    if reason := why_other_shape(model):
        return reason
    if int8 and any(module.in_features % BLOCK for module in linear_layers(model)):
        return f"its layers are not multiples of {BLOCK} wide, the blocks of int8"
    return ""


def _matrices(model: Any, int8: bool) -> Matrices:
    """All matrices, in the order in which a pass uses them."""
    return join(
        Part([_weight(module, int8) for module in modules], list(map(_bias, modules)), takes_turns)
        for modules, takes_turns in _modules(model)
    )


def _weight(module: Any, int8: bool) -> Floats:
    return rounded(as_array(module.weight)) if int8 else as_array(module.weight)


def _modules(model: Any) -> list[tuple[tuple[Any, ...], bool]]:
    """The linear layers of each matrix, and whether their panels alternate."""
    parts = [part for layer in model.model.layers for part in _layer_matrices(layer)]
    return [*parts, ((model.lm_head,), False)]


def _layer_matrices(layer: Any) -> list[tuple[tuple[Any, ...], bool]]:
    """For each matrix of a layer the modules it consists of, and whether their panels alternate."""
    attention, mlp = layer.self_attn, layer.mlp
    return [
        ((attention.q_proj, attention.k_proj, attention.v_proj), False),
        ((attention.o_proj,), False),
        ((mlp.gate_proj, mlp.up_proj), True),
        ((mlp.down_proj,), False),
    ]


def _bias(module: Any) -> Floats:
    if module.bias is None:
        return np.zeros(module.out_features, np.float32)
    return as_array(module.bias)


def as_array(tensor: Any) -> Floats:
    """A tensor as float32, which holds every 16-bit number exactly."""
    return np.ascontiguousarray(tensor.detach().float().numpy())


def gate(model: Any) -> Gate:
    """The activation of the MLPs of a transformers model."""
    return GATES[activation(model.config)]


def norm_weight(norm: Any) -> Floats:
    """The weight (size,) of a norm.  Gemma stores it minus one."""
    weight = norm.weight.detach().float()
    return np.ascontiguousarray((1.0 + weight if is_gemma(norm) else weight).numpy())


def norm_eps(norm: Any) -> Any:
    """The epsilon of a norm, as float32."""
    return np.float32(norm.eps if is_gemma(norm) else norm.variance_epsilon)


def norms(model: Any) -> Floats:
    """Weights (2 * layers + 1, hidden) of the norms before attention and before the MLP of each
    layer, and of the last norm."""
    before_mlp = "pre_feedforward_layernorm" if is_gemma(model) else "post_attention_layernorm"
    pairs = [(layer.input_layernorm, getattr(layer, before_mlp)) for layer in model.model.layers]
    return np.stack([norm_weight(norm) for norm in (*sum(pairs, ()), model.model.norm)])


def post_norms(model: Any) -> Floats:
    """Weights (2 * layers, hidden) of the norms after attention and after the MLP of each layer;
    (0, hidden) for models without such norms."""
    if not is_gemma(model):
        return np.empty((0, model.config.hidden_size), np.float32)
    layers = model.model.layers
    pairs = [(layer.post_attention_layernorm, layer.post_feedforward_layernorm) for layer in layers]
    return np.stack([norm_weight(norm) for norm in sum(pairs, ())])


def embedding_scale(model: Any) -> Any:
    """The factor of embeddings, as float32."""
    embedding = model.model.embed_tokens
    scale = getattr(embedding, "scalar_embed_scale", getattr(embedding, "embed_scale", 1.0))
    return np.float32(float(scale))


def windows(model: Any) -> Ints:
    """How many tokens a token sees in each layer (layers,), itself included."""
    kinds = layer_kinds(model)
    assert kinds is not None, "refused by why_other_shape"
    return np.array([kind.window or UNLIMITED for kind in kinds])
