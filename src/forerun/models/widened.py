"""A transformers model of 16-bit weights, computed in float32.

This is what the lean CPU pass computes for such a model, so it is what that pass is compared with.
A CPU without 16-bit products is also far faster this way.  Weights are widened one at a time, when
they are used: a widened copy of the model might not fit.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from forerun.models.forward import Forward, Pass

NARROW = (torch.bfloat16, torch.float16)


class WidenedForward(Forward):
    """`Forward` in float32, exact for the weights as they are."""

    @property
    def dtype(self) -> Any:
        return torch.float32

    def __call__(self, *arguments: Any, **options: Any) -> Pass:
        with Widening():
            return super().__call__(*arguments, **options)


class Widening(TorchFunctionMode):  # type: ignore[misc]
    """Every operation gets float32 where it was given 16-bit numbers."""

    def __torch_function__(
        self, function: Any, types: Any, arguments: Any = (), options: Any = None
    ) -> Any:
        options = options or {}
        if getattr(function, "__name__", "") == "__get__":  # a size or a dtype: nothing is computed
            return function(*arguments, **options)
        if function is torch.nn.functional.embedding:  # a few rows of a large table
            return widened(function(*arguments, **options))
        return function(*tree_map(widened, arguments), **tree_map(widened, options))


def widened(value: Any) -> Any:
    is_narrow = isinstance(value, torch.Tensor) and value.dtype in NARROW
    return value.float() if is_narrow else value


def exact_forward(model: Any) -> Forward:
    """The pass that a float32 copy of the model would run."""
    is_narrow = any(weight.dtype in NARROW for weight in model.parameters())
    return WidenedForward(model) if is_narrow else Forward(model)
