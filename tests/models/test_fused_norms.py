"""Norms of transformers models, computed by torch's fused norm."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.olmo2.modeling_olmo2 import Olmo2RMSNorm

from forerun.models.captured_pass import (
    EQUAL,
    FORMULAS,
    MOST_NARROW_ULPS,
    MOST_ULPS,
    _agree,
    fused_norms,
    taken,
)

WIDTH = 64
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
KINDS = [LlamaRMSNorm, Olmo2RMSNorm, Gemma3RMSNorm]


def make(kind: Any, dtype: torch.dtype) -> Any:
    torch.manual_seed(1)
    norm = kind(WIDTH, eps=1e-5)
    norm.weight.data = norm.weight.data + 0.3 * torch.randn(WIDTH)
    return norm.to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
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
    most = MOST_ULPS if dtype is torch.float32 else MOST_NARROW_ULPS
    tolerance = {"rtol": most * torch.finfo(dtype).eps, "atol": torch.finfo(dtype).tiny}
    assert torch.allclose(got.float(), expected.float(), **tolerance)
    if dtype is not torch.float32:
        assert (got == expected).float().mean() >= EQUAL


@pytest.mark.parametrize("kind", KINDS)
def test_one_formula_agrees(kind: Any) -> None:
    """They differ by where they round, which is seen in 16 bits."""
    norm = make(kind, torch.bfloat16)
    rows = torch.randn(20, WIDTH).bfloat16()
    with torch.inference_mode():
        assert sum(_agree(formula(norm, 1e-5)(rows), norm(rows)) for formula in FORMULAS) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_norms_in_float64_are_never_fused(kind: Any) -> None:
    """Not even where the results on the rows that are compared are the same bits, as here."""
    norm = make(kind, torch.float64)
    rows = torch.randn(8, WIDTH).double()
    with torch.inference_mode():
        assert any(_agree(formula(norm, 1e-5)(rows), norm(rows)) for formula in FORMULAS)
    assert fused_norms(torch.nn.Sequential(norm)) == {}


def test_rows_of_another_dtype_go_to_the_module() -> None:
    """A float32 norm in a 16-bit model: float32 rows do not tell where it rounds."""
    norm = make(Olmo2RMSNorm, torch.float32)
    rows = torch.randn(20, WIDTH).bfloat16()
    with torch.inference_mode(), taken(fused_norms(torch.nn.Sequential(norm))):
        assert "forward" in vars(norm)
        got = norm(rows)
    with torch.inference_mode():
        expected = norm(rows)
    assert got.dtype == expected.dtype
    assert torch.equal(got, expected)


def test_what_no_formula_reproduces_is_left_alone() -> None:
    class ShiftedRMSNorm(LlamaRMSNorm):  # type: ignore[misc]
        def forward(self, hidden_states: Any) -> Any:
            return super().forward(hidden_states) + 0.125

    class BareRMSNorm(torch.nn.Module):
        """One without weights."""

        def forward(self, values: Any) -> Any:
            return values

    class GatedRMSNorm(LlamaRMSNorm):  # type: ignore[misc]
        def forward(self, hidden_states: Any, gate: Any = None) -> Any:
            result = super().forward(hidden_states)
            return result if gate is None else result * gate

    class OutsideRMSNorm(LlamaRMSNorm):  # type: ignore[misc]
        """Epsilon is added to the root, which only small rows show."""

        def forward(self, hidden_states: Any) -> Any:
            wide = hidden_states.float()
            root = wide.pow(2).mean(-1, keepdim=True).sqrt()
            return self.weight * (wide / (root + self.variance_epsilon)).to(hidden_states.dtype)

    for kind in (ShiftedRMSNorm, GatedRMSNorm, OutsideRMSNorm):
        assert fused_norms(torch.nn.Sequential(kind(WIDTH).bfloat16())) == {}
    assert fused_norms(torch.nn.Sequential(BareRMSNorm())) == {}
