"""Attention with shared keys, which are not copied."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from forerun.models.captured_pass import NAME, attend, grouped_attention


def inputs(num_heads: int, num_tokens: int) -> tuple[Any, Any, Any, Any]:
    """Queries, keys and values of two key heads in three rows, and a mask."""
    torch.manual_seed(0)
    query = torch.randn(3, num_tokens, num_heads, 8).transpose(1, 2)
    key, value = torch.randn(2, 3, 2, 7, 8)
    is_hidden = torch.rand(3, 1, num_tokens, 7) < 0.4
    is_hidden[..., 0] = False
    return query, key, value, torch.zeros(is_hidden.shape).masked_fill_(is_hidden, -1e30)


@pytest.mark.parametrize("num_tokens", [1, 4])
@pytest.mark.parametrize("num_heads", [2, 6])
@pytest.mark.parametrize("masked", [True, False])
def test_results_are_those_of_copied_keys(num_heads: int, num_tokens: int, masked: bool) -> None:
    query, key, value, mask = inputs(num_heads, num_tokens)
    module: Any = SimpleNamespace(num_key_value_groups=num_heads // 2, is_causal=False)
    arguments = query, key, value, mask if masked else None
    expected, _ = sdpa_attention_forward(module, *arguments, scaling=0.3)
    got, _ = attend(module, *arguments, scaling=0.3)
    assert got.shape == (3, num_tokens, num_heads, 8)
    assert torch.allclose(got, expected, atol=1e-6)


@pytest.mark.parametrize("usual", ["sdpa", "eager"])
def test_a_model_attends_so_for_a_while(usual: str) -> None:
    """One that was told to attend in another way keeps to it."""
    sizes: Any = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 61,
    }
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**sizes, attn_implementation=usual)).eval()
    ids = torch.randint(0, 61, (2, 9))
    with torch.inference_mode():
        expected = model(ids).logits
        with grouped_attention(model):
            assert model.config._attn_implementation == (NAME if usual == "sdpa" else usual)
            got = model(ids).logits
    assert model.config._attn_implementation == usual
    assert torch.allclose(got, expected, atol=1e-5)
