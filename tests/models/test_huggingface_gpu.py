"""The same comparison on a CUDA device: indices, masks and caches must follow the model there."""

from __future__ import annotations

import warnings

import pytest
import torch
from architectures import ATTENTION, RECURRENT
from tiny_models import Architecture, Driver, fresh_logits

from forerun.models import HuggingFaceModel
from forerun.models.rounded import rounded_copy

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
KINDS = ("llama", "gpt2", "mistral", "gemma3_text", "bloom", "mixtral", "mamba2", "falcon_h1")


@pytest.mark.parametrize(
    "architecture", [a for a in (*ATTENTION, *RECURRENT) if a.kind in KINDS], ids=str
)
def test_rows_score_like_a_fresh_pass(architecture: Architecture) -> None:
    model = architecture.build().cuda()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        language_model = HuggingFaceModel(model)
        assert language_model.strategy == architecture.strategy
    assert Driver(language_model, model, num_rows=3).play(8, seed=1) <= architecture.tolerance


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_low_precision_keeps_the_strategy(dtype: torch.dtype) -> None:
    for architecture in ATTENTION[:6]:
        model = architecture.build().to("cuda", dtype)
        assert HuggingFaceModel(model).strategy == "crop"


@pytest.mark.parametrize("architecture", [a for a in ATTENTION if a.strategy == "crop"], ids=str)
def test_nodes_score_like_their_paths(architecture: Architecture) -> None:
    model = architecture.build().cuda()
    language_model = HuggingFaceModel(model)
    assert language_model.scores_trees
    assert Driver(language_model, model, 3).play_trees(8, seed=1) <= architecture.tolerance


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_rounded_weights_are_near_the_exact_ones(dtype: torch.dtype) -> None:
    options = {"hidden_size": 64, "intermediate_size": 128}
    model = Architecture("llama", "crop", options).build().to("cuda", dtype)
    text = list(range(3, 20))
    exact = fresh_logits(model, text).double()
    for bits, most in (("int8", 0.1), ("int4", 0.7)):
        found = fresh_logits(rounded_copy(model, bits), text).double()  # type: ignore[arg-type]
        assert float((found - exact).pow(2).mean().sqrt() / exact.std()) < most
