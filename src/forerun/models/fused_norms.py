"""RMS norms of a transformers model in two to four kernels instead of eight to ten.

In a captured pass of a few tokens most kernels take two microseconds whatever they do, and
transformers computes a norm as single operations.  Here torch's fused norm replaces most of them.
Of several formulas the one is taken whose results equal those of the module, rounding included; a
module that none reproduces is left alone.  So is every norm in float64: transformers computes those
in float32, and another order of the sum changes the ninth digit, where the rest of the model has
sixteen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import signature
from typing import Any

import torch
from torch.nn.functional import rms_norm

DTYPES = (torch.float32, torch.bfloat16, torch.float16)  # dtypes in which norms may be fused
NUM_ROWS = 8  # rows of input for which results are compared
SIZES = (-4, 2)  # magnitudes of these rows as powers of ten: the smallest show where epsilon is
MOST_ULPS = 4  # the largest difference of a float32 number, as the order of the sum is different
MOST_NARROW_ULPS = 2  # the largest difference of a 16-bit number: one rounding the other way
EQUAL = 0.98  # the share of 16-bit numbers that must be equal

Norm = Callable[[Any], Any]


def _rounded_first(norm: Any, eps: float) -> Norm:
    """The norm of Llama, Mistral, Qwen and Phi: rounded before the weight multiplies it."""
    return lambda x: norm.weight * rms_norm(x, norm.weight.shape, None, eps)


def _rounded_last(norm: Any, eps: float) -> Norm:
    """The norm of OLMo 2: rounded after the weight has multiplied it."""
    return lambda x: (norm.weight * rms_norm(x.float(), norm.weight.shape, None, eps)).to(x.dtype)


def _around_one(norm: Any, eps: float) -> Norm:
    """The norm of Gemma: the weight is stored minus 1, and rounding comes last."""

    def fused(x: Any) -> Any:
        result = rms_norm(x.float(), norm.weight.shape, None, eps)
        return (result * (1.0 + norm.weight.float())).to(x.dtype)

    return fused


FORMULAS = (_rounded_first, _rounded_last, _around_one)


def fused_norms(model: Any) -> dict[Any, Norm]:
    """For each norm of a model that a formula reproduces, the function that computes it."""
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
    """Within the context, compute the given norms by their fused functions."""
    for module, fused in norms.items():
        module.forward = fused
    try:
        yield
    finally:
        for module in norms:
            del module.forward


def _fused(norm: Any) -> Norm | None:
    """The first formula that reproduces a norm on random rows; None if none does."""
    eps = getattr(norm, "variance_epsilon", getattr(norm, "eps", None))
    weight = getattr(norm, "weight", None)
    if not isinstance(eps, float) or weight is None or weight.dim() != 1:
        return None
    if weight.dtype not in DTYPES or len(signature(norm.forward).parameters) != 1:
        return None
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn((NUM_ROWS, len(weight)), generator=generator)
    rows *= torch.logspace(*SIZES, NUM_ROWS)[:, None]
    rows = rows.to(weight.device, weight.dtype)
    expected = norm(rows)
    made = (formula(norm, eps) for formula in FORMULAS)
    chosen = next((fused for fused in made if _agree(fused(rows), expected)), None)
    return None if chosen is None else _for_its_dtype(norm, chosen)


def _for_its_dtype(norm: Any, fused: Norm) -> Norm:
    """A function that uses `fused` for rows of the weight's dtype, for which results were compared,
    and the module itself for others."""
    usual = norm.forward
    return lambda x: fused(x) if x.dtype == norm.weight.dtype else usual(x)


def _agree(got: Any, expected: Any) -> bool:
    """Whether two results are equal up to the differences that are allowed for their dtype."""
    if got.dtype != expected.dtype or got.shape != expected.shape:
        return False
    limits = torch.finfo(expected.dtype)
    is_narrow = expected.dtype.itemsize == 2
    got, expected = got.double(), expected.double()
    ulp = limits.eps * expected.abs().clamp(min=limits.tiny)
    most = MOST_NARROW_ULPS if is_narrow else MOST_ULPS
    is_near = bool(((got - expected).abs() <= most * ulp).all())
    return is_near and (not is_narrow or float((got == expected).double().mean()) >= EQUAL)
