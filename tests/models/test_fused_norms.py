"""Norms of transformers models, computed by torch's fused norm."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.olmo2.modeling_olmo2 import Olmo2RMSNorm

from forerun.models.fused_norms import EQUAL, FORMULAS, _agree, fused_norms, taken

WIDTH = 64
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def make(kind: Any, dtype: torch.dtype) -> Any:
    torch.manual_seed(1)
    norm = kind(WIDTH, eps=1e-5)
    norm.weight.data = norm.weight.data + 0.3 * torch.randn(WIDTH)
    return norm.to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", [LlamaRMSNorm, Olmo2RMSNorm, Gemma3RMSNorm])
def test_results_are_those_of_the_module(kind: Any, dtype: torch.dtype) -> None:
    """On other rows than it was tried on, of four dimensions."""
    norm = make(kind, dtype)
    norms = fused_norms(torch.nn.Sequential(norm))
    rows = 0.1 * torch.randn(2, 3, 4, WIDTH).to(dtype)
    with torch.inference_mode():
        expected = norm(rows)
        with taken(norms):
            assert "forward" in vars(norm)
            got = norm(rows)
    assert "forward" not in vars(norm)
    assert torch.allclose(got.float(), expected.float(), rtol=4 * torch.finfo(dtype).eps, atol=0)
    if dtype is not torch.float32:
        assert (got == expected).float().mean() >= EQUAL


@pytest.mark.parametrize("kind", [LlamaRMSNorm, Olmo2RMSNorm, Gemma3RMSNorm])
def test_one_formula_agrees(kind: Any) -> None:
    """They differ by where they round, which is seen in 16 bits."""
    norm = make(kind, torch.bfloat16)
    rows = torch.randn(20, WIDTH).bfloat16()
    with torch.inference_mode():
        assert sum(_agree(formula(norm, 1e-5)(rows), norm(rows)) for formula in FORMULAS) == 1


def test_what_no_formula_reproduces_is_left_alone() -> None:
    class ShiftedRMSNorm(LlamaRMSNorm):  # type: ignore[misc]
        def forward(self, hidden_states: Any) -> Any:
            return super().forward(hidden_states) + 0.125

    class BareRMSNorm(torch.nn.Module):
        """One without weights."""

        def forward(self, values: Any) -> Any:
            return values

    assert fused_norms(torch.nn.Sequential(ShiftedRMSNorm(WIDTH), BareRMSNorm())) == {}
