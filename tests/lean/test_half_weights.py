"""Checkpoints of 16-bit weights: kept as they are, computed in float32, the same bits always."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from test_limbs import check_every_company
from tiny_models import Architecture, Driver, fresh_logits, largest, random_tokens
from words import save_tokenizer

pytest.importorskip("numba")

import forerun as fr
from forerun.lean.formats import Format
from forerun.lean.model import LeanModel
from forerun.lean.shape import LANES
from forerun.loading.cpu_pass import choose
from forerun.models import HuggingFaceModel
from forerun.models.forward import exact_forward

NUM_TOKENS = 300
SIZES = {"hidden_size": 64, "intermediate_size": 96, "max_position_embeddings": 512}
FORMATS = {torch.bfloat16: Format.BFLOAT16, torch.float16: Format.FLOAT16}


def half_model(dtype: Any, kind: str = "llama", **options: Any) -> Any:
    return Architecture(kind, "", {**SIZES, **options}, dtype=dtype).build()


def widened(model: Any) -> Any:
    """The same weights in float32."""
    copied = half_model(torch.float32, model.config.model_type)
    copied.load_state_dict({name: value.float() for name, value in model.state_dict().items()})
    return copied


@pytest.mark.parametrize("dtype", FORMATS)
def test_the_same_bits_in_every_company(dtype: Any) -> None:
    text = random_tokens(random.Random(4), NUM_TOKENS)
    model = half_model(dtype)
    check_every_company(
        lambda threads: LeanModel(model, num_threads=threads), text, {FORMATS[dtype]}
    )


@pytest.mark.parametrize("dtype", FORMATS)
def test_the_bits_are_those_of_the_widened_model(
    dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A float32 model with these weights, stored as float32, gives every logit to the last bit."""
    from forerun.lean import joining, storage

    model = half_model(dtype)
    lean, text = LeanModel(model, num_threads=1), random_tokens(random.Random(5), 40)
    logits = lean.score(lean.start(1, 40), [0], [text], [40])
    wide = widened(model)
    wide.model.rotary_emb.load_state_dict(model.model.rotary_emb.state_dict())
    monkeypatch.setattr(joining, "store", storage.float32)
    plain = LeanModel(wide, num_threads=1)
    assert set(plain._weights.matrices.format) == {Format.FLOAT32}
    plain.packed = plain.packed._replace(rotary=lean.packed.rotary)  # `to` rounded its table
    assert torch.equal(plain.score(plain.start(1, 40), [0], [text], [40]), logits)


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "gemma3_text"])
@pytest.mark.parametrize("dtype", FORMATS)
def test_ragged_rows_equal_the_model_in_float32(dtype: Any, kind: str) -> None:
    model = half_model(dtype, kind)
    lean = LeanModel(model, num_threads=2)
    forward = exact_forward(model)

    def in_float32(input_ids: Any, **options: Any) -> Any:
        return forward(input_ids, input_ids.shape[1], use_cache=False)

    in_float32.device = torch.device("cpu")  # type: ignore[attr-defined]
    assert Driver(lean, in_float32, num_rows=3).play(num_rounds=15, seed=0) < 1e-4


def test_weights_are_widened_and_nothing_else_changes() -> None:
    model = half_model(torch.bfloat16)
    ids = torch.tensor([random_tokens(random.Random(6), 20)])
    with torch.inference_mode():
        logits = exact_forward(model)(ids, 20, use_cache=False).logits[0]
    assert logits.dtype is torch.float32
    assert model.dtype is torch.bfloat16
    wide = widened(model)
    wide.model.rotary_emb.inv_freq = model.model.rotary_emb.inv_freq.float()
    assert largest(logits - fresh_logits(wide, ids[0].tolist())) < 1e-5


def test_a_16_bit_checkpoint_takes_the_lean_pass(tmp_path: Path) -> None:
    half_model(torch.bfloat16).save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    model = fr.load(str(tmp_path))
    assert type(model) is LeanModel
    assert model.model.dtype is torch.bfloat16
    assert model.compute_dtype == "float32"
    assert model.pass_name == "lean CPU pass in float32, bfloat16 weights"
    text = random_tokens(random.Random(7), 12)
    logits = model.score(model.start(1, 16), [0], [text], [1])[0, 0]
    assert largest(logits - model.fresh(text)) < 1e-4


def test_a_16_bit_model_that_is_not_reproduced_is_not_taken() -> None:
    """It is compared in float32, so a difference cannot hide in the rounding of 16 bits."""
    broken = half_model(torch.bfloat16)
    mlp = broken.model.layers[1].mlp
    mlp.forward = lambda x, forward=mlp.forward: 1.01 * forward(x)
    plain = HuggingFaceModel(broken)
    with pytest.warns(RuntimeWarning, match="runs on transformers.*does not reproduce"):
        assert choose(plain) is plain


def test_what_float16_cannot_hold_is_kept_in_float32() -> None:
    model = half_model(torch.float16)
    model.lm_head.weight.data[3, 5] = torch.inf
    matrices = LeanModel(model)._weights.matrices
    head = matrices.output_at[-1] // LANES  # its first panel
    assert set(matrices.format[:head]) == {Format.FLOAT16}
    assert set(matrices.format[head:]) == {Format.FLOAT32}
