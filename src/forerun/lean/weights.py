"""Takes the weights out of a transformers model, or says why the lean pass cannot compute it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from forerun.base.errors import UnsupportedError, explain
from forerun.lean.attention import UNLIMITED, HeadShape
from forerun.lean.formats import BLOCK
from forerun.lean.forward import Weights
from forerun.lean.from_files import Description, no_matrices
from forerun.lean.joining import Part, join
from forerun.lean.linear import GELU_TANH, SILU, Floats, Matrices
from forerun.lean.packed import Facts, Packed, Rotary
from forerun.lean.storage import padded, rounded
from forerun.models import families
from forerun.models.base import endings_of, generation_defaults
from forerun.models.families import Form, form_of, linear_parts, why_unserved

GATES = {"silu": SILU, "gelu": GELU_TANH}
SERVED = frozenset(
    {
        "sliding windows",
        "layers without rotary embedding",
        "several rotary tables",
        "norms of heads",
        "norms after attention and MLP",
        "GELU",
        "a scaled embedding",
        "fused matrices",
    }
)
"""The features beyond those of a Llama that the pass supports (names as in `Form.features`)."""

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def pack(model: Any, int8: bool = False) -> Packed:
    """The weights and facts of a transformers model, as the lean pass runs it.

    int8: round linear weights to 8 bits.  Raises if `unfit` has a reason against the model.
    """
    check_fits(model, int8)
    embedding = as_array(model.model.embed_tokens.weight)
    return _packed(model, _matrices(model, int8), embedding, int8)


def described(model: Any) -> Description:
    """The weights and facts of a model without its linear layers and embedding, whose values
    `model` need not have."""
    matrices = no_matrices(np.concatenate([_bias(x) for xs, _ in _modules(model) for x in xs]))
    names = {module: f"{name}.weight" for name, module in model.named_modules()}
    layers = [([names[module] for module in each], turns) for each, turns in _modules(model)]
    embedding = np.empty((0, model.config.hidden_size), np.float32)
    return Description(_packed(model, matrices, embedding, is_rounded=False), layers)


def _packed(model: Any, matrices: Matrices, embedding: Floats, is_rounded: bool) -> Packed:
    config = model.config
    form = form_of(model)
    return Packed(
        weights=_weights(model, form, matrices, embedding),
        rotary=rotary_of(model, form),
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


def rotary_of(model: Any, form: Form) -> Rotary:
    """The rotary tables of a model, and one that rotates nothing where some layers have none."""
    frequencies, factors = families.rotary_of(model)
    kept = frequencies.numpy()
    if any(layer.table is None for layer in form.layers):
        kept, factors = np.concatenate([kept, np.zeros_like(kept[:1])]), [*factors, 1.0]
    return Rotary(kept, np.array(factors, np.float32))


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


def _weights(model: Any, form: Form, matrices: Matrices, embedding: Floats) -> Weights:
    layers, size, eps = model.model.layers, form.head_size, np.float32(form.eps)
    unturned = form.num_tables  # the table behind the model's own
    return Weights(
        matrices=matrices,
        embedding=embedding,
        embedding_scale=np.float32(form.embedding_scale),
        norms=np.concatenate([_norms(model, form, form.family.before), _last_norm(model, form)]),
        post_norms=_norms(model, form, form.family.after),
        head_norms=np.stack([_head_norms(layer.self_attn, form) for layer in layers]),
        heads=HeadShape(
            queries=form.num_heads,
            keys=form.num_key_heads,
            size=size,
            wide=padded(size),
            scale=np.float32(form.attention_scale),
            has_norms=form.head_norms == "head",
            eps=eps if form.head_norms else np.float32(0),
        ),
        windows=np.array([layer.window or UNLIMITED for layer in form.layers]),
        tables=np.array([unturned if at.table is None else at.table for at in form.layers]),
        gate=GATES[form.activation],
        eps=eps,
    )


def unfit(model: Any, int8: bool = False) -> str:
    """The reason why the lean pass cannot compute this model; empty if it can."""
    if any(p.dtype not in DTYPES or p.device.type != "cpu" for p in model.parameters()):
        return 'its weights are not all 32 or 16 bits on the CPU (dtype="float32" makes them so)'
    if reason := why_unserved(model, SERVED):
        return reason
    inputs = [module.in_features for modules, _ in _modules(model) for module in modules]
    if int8 and any(count % BLOCK for count in inputs):
        return f"its layers are not multiples of {BLOCK} wide, the blocks of int8"
    return ""


def _matrices(model: Any, int8: bool) -> Matrices:
    """All matrices, in the order in which a pass uses them."""
    return join(_part(modules, takes_turns, int8) for modules, takes_turns in _modules(model))


def _part(modules: Sequence[Any], takes_turns: bool, int8: bool) -> Part:
    weights, biases = [_weight(module, int8) for module in modules], list(map(_bias, modules))
    if takes_turns and len(modules) == 1:  # gate and up are one matrix in the model
        weights, biases = np.split(weights[0], 2), np.split(biases[0], 2)
    return Part(weights, biases, takes_turns)


def _weight(module: Any, int8: bool) -> Floats:
    return rounded(as_array(module.weight)) if int8 else as_array(module.weight)


def _modules(model: Any) -> list[tuple[tuple[Any, ...], bool]]:
    """The linear layers of each matrix, and whether panels alternate: those of gate and up do."""
    layers = map(linear_parts, model.model.layers)
    parts = [(tuple(part), number == 2) for parts in layers for number, part in enumerate(parts)]
    return [*parts, ((model.lm_head,), False)]


def _bias(module: Any) -> Floats:
    if module.bias is None:
        return np.zeros(module.out_features, np.float32)
    return as_array(module.bias)


def as_array(tensor: Any) -> Floats:
    """A tensor as float32, which holds every 16-bit number exactly."""
    return np.ascontiguousarray(tensor.detach().float().numpy())


def _norms(model: Any, form: Form, names: Sequence[str]) -> Floats:
    """Weights (layers * len(names), hidden) of the norms of these names, layer by layer."""
    norms = [getattr(layer, name) for layer in model.model.layers for name in names]
    made = [as_array(norm.weight.float() + form.family.unit) for norm in norms]
    return np.stack(made) if made else np.empty((0, model.config.hidden_size), np.float32)


def _last_norm(model: Any, form: Form) -> Floats:
    """(1, hidden): the weights of the norm before the head."""
    return as_array(model.model.norm.weight.float() + form.family.unit)[None]


def _head_norms(attention: Any, form: Form) -> Floats:
    """The weights (2, head size) of the norms of queries and of keys; ones if there are no such
    norms."""
    if not form.head_norms:
        return np.ones((2, form.head_size), np.float32)
    norms = attention.q_norm, attention.k_norm
    return np.stack([as_array(norm.weight.float() + form.family.unit) for norm in norms])
