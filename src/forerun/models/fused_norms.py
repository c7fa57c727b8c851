"""RMS norms of a transformers model in two to four kernels instead of eight to ten.

In a captured pass of a few tokens most kernels take two microseconds whatever they do, and
transformers writes a norm as single operations.  Here the largest part of it is torch's fused norm.
The formula is taken whose results are those of the module, rounding included; a module that none
reproduces is left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.functional import rms_norm

NUM_ROWS = 8  # that are compared
MOST_ULPS = 4  # by which a number may differ, the order of a sum being another
EQUAL = 0.98  # share of 16-bit numbers that must not differ at all

Norm = Callable[[Any], Any]


def _rounded_first(norm: Any, eps: float) -> Norm:
    """Llama, Mistral, Qwen, Phi: the weight multiplies what was rounded."""
    return lambda x: norm.weight * rms_norm(x, norm.weight.shape, None, eps)


def _rounded_last(norm: Any, eps: float) -> Norm:
    """OLMo 2."""
    return lambda x: (norm.weight * rms_norm(x.float(), norm.weight.shape, None, eps)).to(x.dtype)


def _around_one(norm: Any, eps: float) -> Norm:
    """Gemma: the weight is stored less 1."""

    def fused(x: Any) -> Any:
        result = rms_norm(x.float(), norm.weight.shape, None, eps)
        return (result * (1.0 + norm.weight.float())).to(x.dtype)

    return fused


FORMULAS = (_rounded_first, _rounded_last, _around_one)


def fused_norms(model: Any) -> dict[Any, Norm]:
    """The norms of a model that a formula reproduces, each with what computes it."""
    norms = [
        module
        for module in model.modules()
        if type(module).__name__.endswith("RMSNorm") and "forward" not in vars(module)
    ]
    with torch.no_grad():
        pairs = [(norm, _fused(norm)) for norm in norms]
    return {norm: fused for norm, fused in pairs if fused is not None}


@contextmanager
def taken(norms: dict[Any, Norm]) -> Iterator[None]:
    """Compute these norms so for now."""
    for module, fused in norms.items():
        module.forward = fused
    try:
        yield
    finally:
        for module in norms:
            del module.forward


def _fused(norm: Any) -> Norm | None:
    eps = getattr(norm, "variance_epsilon", getattr(norm, "eps", None))
    weight = getattr(norm, "weight", None)
    if not isinstance(eps, float) or weight is None or weight.dim() != 1:
        return None
    generator = torch.Generator().manual_seed(0)
    rows = 3 * torch.randn((NUM_ROWS, len(weight)), generator=generator)
    rows = rows.to(weight.device, weight.dtype)
    expected = norm(rows)
    made = (formula(norm, eps) for formula in FORMULAS)
    return next((fused for fused in made if _agree(fused(rows), expected)), None)


def _agree(got: Any, expected: Any) -> bool:
    if got.dtype != expected.dtype or got.shape != expected.shape:
        return False
    bound = MOST_ULPS * torch.finfo(expected.dtype).eps * expected.abs()
    is_near = bool(((got - expected).abs() <= bound).all())
    is_wide = expected.dtype.itemsize > 2
    return is_near and (is_wide or float((got == expected).float().mean()) >= EQUAL)
