"""One call of a transformers model, with only the arguments its class understands.

Causal models differ in what they call their cache and in whether they can project just some
positions to the vocabulary. Those differences are read from the signature once and end here.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from forerun.models.no_warnings import no_onednn_traces

no_onednn_traces()

# In order of preference: attention and hybrid models, Mamba and xLSTM, RWKV.
CACHE_ARGUMENTS = ("past_key_values", "cache_params", "state")
# What torch.set_float32_matmul_precision makes of float32 products on a GPU.
TF32_NAMES = {"highest": "float32", "high": "tfloat32", "medium": "bfloat16"}


class Pass(NamedTuple):
    """What a pass gives."""

    logits: Any  # (R, C, V)
    cache: Any  # as it is afterwards; None if the model returns none
    hidden_states: Any = None  # where asked for: the embedding (R, N, H), then after each layer


class Forward:
    """Calls `model` on token ids, with logits for chosen columns."""

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
        """The coarsest of the dtypes that weights have, or that torch was told to compute in."""
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
        columns: int | Any,  # the last so many columns, or their indices (C,)
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
    """Keep fused attention away from cuDNN, which plans anew for every number of keys.

    Texts have a new length in every round, and a plan costs tens of milliseconds: several times
    a pass. The other kernels are compiled once.
    """
    was_enabled = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(was_enabled)
