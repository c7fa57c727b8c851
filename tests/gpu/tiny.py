"""Small random models of the shapes that the lean GPU pass computes."""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from forerun.gpu import pool

pool.SHARE = 0.02  # several processes of a run have models on one device
ON_DEVICE = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="needs compiled kernels"),
]
"""Marks of tests that run on a GPU."""

MIDDLING: dict[str, Any] = {
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 5000,
    "max_position_embeddings": 4096,
    "initializer_range": 0.05,
}
"""Sizes of a model for a GPU."""

COMMON: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
}


def build(
    kind: str = "llama", dtype: Any = torch.float16, device: str = "cpu", **options: Any
) -> Any:
    """A model whose norms and biases are random too, so that leaving one out shows."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**COMMON, **options}))
    with torch.no_grad():
        for weights in model.parameters():
            if weights.dim() == 1:
                weights.add_(0.3 * torch.randn(weights.shape))
    return model.to(device, dtype).eval()


def noisy_copy(model: Any, amount: float, seed: int = 0) -> Any:
    """A model that often, but not always, agrees with the original."""
    generator = torch.Generator().manual_seed(seed)
    changed = copy.deepcopy(model)
    with torch.no_grad():
        for weights in changed.parameters():
            noise = torch.randn(weights.shape, generator=generator).to(weights)
            weights += amount * weights.std(correction=0) * noise
    return changed


class Reference:
    """The model in float32, run by transformers with its eager attention: the fused one leaves out
    caps on scores in transformers 5.17."""

    def __init__(self, model: Any) -> None:
        self.model = copy.deepcopy(model).float()
        self.model.set_attn_implementation("eager")

    @torch.inference_mode()
    def logits(self, text: Sequence[int]) -> Any:
        """After each token, (N, V)."""
        ids = torch.tensor([list(text)], device=self.model.device)
        return self.model(input_ids=ids, use_cache=False).logits[0]

    @torch.inference_mode()
    def states(self, text: Sequence[int]) -> Any:
        """Hidden states (layers + 1, N, K): of the embedding and each layer; the last normed."""
        ids = torch.tensor([list(text)], device=self.model.device)
        output = self.model(input_ids=ids, use_cache=False, output_hidden_states=True)
        return torch.stack(output.hidden_states)[:, 0]


def stored(storage: Any, row: int, count: int) -> list[Any]:
    """Keys and values (layers, key heads, count, head size) of the first tokens of a row."""
    pages = [page.number for page in storage.pages.of_row(row, count)]
    both = (storage.cache.keys, storage.cache.values)
    return [part[:, pages].transpose(1, 2).flatten(2, 3)[:, :, :count].clone() for part in both]


def error(ours: Any, exact: Any) -> float:
    """The largest error of a row of (N, V), as a share of the row's spread; NaN is infinite."""
    ours, exact = ours.double(), exact.double()
    share = (ours - exact).pow(2).mean(-1).sqrt() / exact.std(-1)
    return float(share.nan_to_num(float("inf")).max())
