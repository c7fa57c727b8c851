"""Calls a transformers model with only the arguments that its class understands.

Causal models differ in the name of their cache argument, and in whether they can compute logits for
some positions only. These differences are read from the signature once, and only this file deals
with them.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from forerun.models.no_warnings import no_onednn_traces

NARROW = (torch.bfloat16, torch.float16)

no_onednn_traces()

# In order of preference: attention and hybrid models, Mamba and xLSTM, RWKV.
CACHE_ARGUMENTS = ("past_key_values", "cache_params", "state")
# The dtype of float32 products on a GPU for each value of torch.set_float32_matmul_precision.
TF32_NAMES = {"highest": "float32", "high": "tfloat32", "medium": "bfloat16"}


class Pass(NamedTuple):
    """The outputs of a pass."""

    logits: Any  # (R, C, V)
    cache: Any  # after the pass; None if the model returns none
    hidden_states: Any = None  # if requested: the embedding (R, N, H), then after each layer


class Forward:
    """Calls a transformers model on token ids, with logits for chosen columns."""

    def __init__(self, model: Any) -> None:
        parameters = inspect.signature(model.forward).parameters
        self.model = model
        self.takes_positions = "position_ids" in parameters
        self.takes_columns = "logits_to_keep" in parameters
        self.cache_argument = next((name for name in CACHE_ARGUMENTS if name in parameters), "")

    @property
    def device(self) -> Any:
        return self.model.device

    @property
    def dtype(self) -> Any:
        return self.model.dtype

    @property
    def compute_dtype(self) -> str:
        """The coarsest dtype among those of the weights and the one torch computes products in."""
        dtypes = {weight.dtype for weight in self.model.parameters() if weight.is_floating_point()}
        kind = self.device.type
        if torch.is_autocast_enabled(kind):
            dtypes.add(torch.get_autocast_dtype(kind))
        coarsest = max(dtypes, key=lambda dtype: torch.finfo(dtype).eps)
        if coarsest is torch.float32 and kind == "cuda":
            return TF32_NAMES[torch.get_float32_matmul_precision()]
        return str(coarsest).removeprefix("torch.")

    def tokens(self, tokens: Sequence[int]) -> Any:
        """One text as ids (1, N) on the model's device."""
        return torch.tensor([tokens], dtype=torch.long, device=self.device)

    def __call__(
        self,
        ids: Any,  # (R, N)
        columns: int | Any,  # the number of last columns to compute, or indices (C,)
        cache: Any = None,
        use_cache: bool = True,
        **arguments: Any,
    ) -> Pass:
        if cache is not None:
            arguments[self.cache_argument] = cache
        if self.takes_columns:
            arguments["logits_to_keep"] = columns
        with without_cudnn_attention():
            output = self.model(input_ids=ids, use_cache=use_cache, **arguments)
        logits = output.logits
        if not self.takes_columns:
            logits = logits[:, -columns:] if isinstance(columns, int) else logits[:, columns]
        states = getattr(output, "hidden_states", None)
        return Pass(logits, getattr(output, self.cache_argument, None), states)


@contextmanager
def without_cudnn_attention() -> Iterator[None]:
    """Let fused attention not use cuDNN, which makes a new plan for every number of keys.

    Texts have a new length in every round, and a plan costs tens of milliseconds, several times as
    much as a pass. Other kernels are compiled once.
    """
    was_enabled = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(was_enabled)


class WidenedForward(Forward):
    """Computes a model of 16-bit weights in float32, as the lean CPU pass does.

    That pass is compared with it, and a CPU without 16-bit products is far faster this way.
    Weights are widened one at a time, when they are used: a widened copy might not fit in memory.
    """

    @property
    def dtype(self) -> Any:
        return torch.float32

    def __call__(self, *arguments: Any, **options: Any) -> Pass:
        with Widening():
            return super().__call__(*arguments, **options)


class Widening(TorchFunctionMode):  # type: ignore[misc]
    """While active, converts the 16-bit tensors among the arguments of operations to float32."""

    def __torch_function__(
        self, function: Any, types: Any, arguments: Any = (), options: Any = None
    ) -> Any:
        options = options or {}
        if getattr(function, "__name__", "") == "__get__":  # an attribute: nothing is computed
            return function(*arguments, **options)
        if function is torch.nn.functional.embedding:  # a few rows of a large table
            return widened(function(*arguments, **options))
        return function(*tree_map(widened, arguments), **tree_map(widened, options))


def widened(value: Any) -> Any:
    """A 16-bit tensor as float32; any other value as it is."""
    is_narrow = isinstance(value, torch.Tensor) and value.dtype in NARROW
    return value.float() if is_narrow else value


def exact_forward(model: Any) -> Forward:
    """The `Forward` that computes a model as its float32 copy would."""
    is_narrow = any(weight.dtype in NARROW for weight in model.parameters())
    return WidenedForward(model) if is_narrow else Forward(model)
