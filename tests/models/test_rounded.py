"""Weights of 8 and 4 bits: near the exact ones, smaller, and beside an untouched original."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from architectures import ATTENTION, RECURRENT
from tiny_models import Architecture, fresh_logits

from forerun.base.errors import InputError, UnsupportedError
from forerun.models import HuggingFaceModel
from forerun.models.rounded import (
    BLOCK,
    Int4Linear,
    Int4LinearOnCpu,
    Int8Linear,
    RoundedLinear,
    rounded_copy,
)

TEXT = [(7 * i) % 61 for i in range(12)]
KINDS = [Int8Linear, Int4Linear, Int4LinearOnCpu]
LEVELS = {Int8Linear: 127, Int4Linear: 15, Int4LinearOnCpu: 15}


def random_linear(dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(1)
    return torch.nn.Linear(96, 48).to(dtype).requires_grad_(False)


@pytest.mark.parametrize("kind", KINDS)
def test_a_weight_moves_by_at_most_half_a_step(kind: type[RoundedLinear]) -> None:
    exact = random_linear().weight
    stored = kind(exact, None).weight
    blocks = exact.view(48, -1, 96 if kind is Int8Linear else BLOCK)
    if kind is Int8Linear:
        span = blocks.abs().amax(2, keepdim=True)
    else:
        span = blocks.amax(2, keepdim=True) - blocks.amin(2, keepdim=True)
    step = span / LEVELS[kind]
    allowed = step / 2 + 1e-6
    if kind is Int4LinearOnCpu:
        allowed = allowed + _lost_in_bfloat16(step, blocks.amin(2, keepdim=True) + 8 * step)
    assert ((stored.view_as(blocks) - exact.view_as(blocks)).abs() <= allowed).all()


def _lost_in_bfloat16(step: Any, middle: Any) -> Any:
    """What a weight, step * (code - 8) + middle with codes 0 .. 15, may lose besides.

    Step and middle are rounded to bfloat16, each by 2^-8 of itself at most.  So is the sum, which
    is read as a product with 1; and that is cut off on ARM, where it may lose twice as much.
    """
    reach = 8 * step + middle.abs()
    return 2**-8 * reach + 2**-7 * (1 + 2**-8) * reach


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(1, 96), (2, 3, 96), (40, 96)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_products_are_those_of_the_stored_weights(
    kind: type[RoundedLinear], shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    layer = random_linear(dtype)
    rounded = kind(layer.weight, layer.bias)
    x = torch.randn(shape).to(dtype)
    wanted = torch.nn.functional.linear(x.float(), rounded.weight.float(), layer.bias.float())
    assert rounded(x).dtype == dtype
    assert rounded(x).shape == wanted.shape
    assert (rounded(x).float() - wanted).abs().max() <= 0.02 * wanted.abs().max()


def test_weights_that_are_all_alike() -> None:
    for kind in KINDS:
        for value in (0.0, -2.0):
            stored = kind(torch.full((16, 64), value), None).weight
            assert torch.allclose(stored, torch.full((16, 64), value))


@pytest.mark.parametrize("architecture", [*ATTENTION, *RECURRENT], ids=str)
def test_every_architecture_can_be_rounded(architecture: Architecture) -> None:
    """Int8 hardly moves the logits, int4 more, and the original not at all."""
    model = architecture.build()
    exact = fresh_logits(model, TEXT)
    errors = []
    for bits in ("int8", "int4"):
        found = fresh_logits(rounded_copy(model, bits), TEXT)  # type: ignore[arg-type]
        errors.append(float((found - exact).pow(2).mean().sqrt() / exact.std()))
    assert 0 < errors[0] < 0.1
    assert errors[0] < errors[1] < 0.7
    assert torch.equal(fresh_logits(model, TEXT), exact)


def num_bytes(model: Any, beside: Any = None) -> int:
    """Memory of a model's weights, less what it shares with another."""
    shared = set() if beside is None else {t.data_ptr() for t in beside.parameters()}
    tensors = {t.data_ptr(): t for t in (*model.parameters(), *model.buffers())}
    return sum(t.nbytes for at, t in tensors.items() if at not in shared)


def test_the_copy_is_smaller() -> None:
    options = {"hidden_size": 64, "intermediate_size": 128, "vocab_size": 512}
    model = Architecture("llama", "crop", options).build().float()
    whole = num_bytes(model)
    int8 = num_bytes(rounded_copy(model, "int8"), beside=model)
    int4 = num_bytes(rounded_copy(model, "int4"), beside=model)
    assert int8 < 0.3 * whole
    assert int4 < 0.2 * whole


@pytest.mark.parametrize("bits", ["int8", "int4"])
def test_a_rounded_model_keeps_rows_like_its_original(bits: Any) -> None:
    whole = HuggingFaceModel(
        Architecture("llama", "crop", {"num_hidden_layers": 4}).build().float()
    )
    rounded = whole.rounded(bits)
    assert rounded.strategy == "crop"
    assert rounded.scores_trees
    assert rounded.name == f"LlamaForCausalLM-{bits}"


def test_what_cannot_be_rounded_is_refused() -> None:
    model = Architecture("llama", "crop").build()
    with pytest.raises(InputError, match=r"'int2'.*'int8' and 'int4' work"):
        rounded_copy(model, "int2")  # type: ignore[arg-type]
    odd = {"hidden_size": 20, "intermediate_size": 20, "head_dim": 8}
    odd_model = Architecture("gpt2", "crop", {"n_embd": 20, "n_layer": 1, "n_head": 2, **odd})
    with pytest.raises(UnsupportedError, match=r"no plain linear layers.*GPT2LMHeadModel"):
        rounded_copy(odd_model.build(), "int8")
    model.model.forward = model.model.forward
    with pytest.raises(UnsupportedError, match=r"replaced.*LlamaModel"):
        rounded_copy(model, "int8")
