"""The doctor tells float arithmetic from bugs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import forerun as fr
from forerun.doctor import diagnose

PROMPT = [7, 8, 9]
LAWS = [fr.Sampling(temperature=0.0), fr.Sampling(temperature=0.8, top_p=0.9, seed=4)]


@pytest.fixture
def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=97,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.25,
        eos_token_id=None,
    )
    return LlamaForCausalLM(config).float().eval()


@pytest.mark.parametrize("sampling", LAWS)
def test_equal_outputs_need_no_doctor(model: LlamaForCausalLM, sampling: fr.Sampling) -> None:
    tokens = fr.generate(model, PROMPT, sampling=sampling, max_new_tokens=12).tokens
    assert diagnose(model, PROMPT, tokens, list(tokens), sampling=sampling) is None


@pytest.mark.parametrize("sampling", LAWS)
def test_a_wrong_token_is_a_bug(model: LlamaForCausalLM, sampling: fr.Sampling) -> None:
    tokens = fr.generate(model, PROMPT, sampling=sampling, max_new_tokens=12).tokens
    wrong = [*tokens[:7], (tokens[7] + 1) % 97, *tokens[8:]]
    found = diagnose(model, PROMPT, tokens, wrong, sampling=sampling)
    assert found is not None
    assert found.index == 7
    assert found.tokens == (tokens[7], wrong[7])
    assert not found.is_near_tie
    assert str(found).startswith("bug: at output token 7")


def test_an_output_that_ends_too_soon_is_a_bug(model: LlamaForCausalLM) -> None:
    tokens = fr.generate(model, PROMPT, max_new_tokens=12).tokens
    found = diagnose(model, PROMPT, tokens, tokens[:5])
    assert found is not None
    assert found.tokens == (tokens[5], None)
    assert not found.is_near_tie


def test_twin_tokens_are_a_near_tie(model: LlamaForCausalLM) -> None:
    """Two tokens whose rows of the head differ in the last bits cannot be told apart."""
    first = fr.generate(model, PROMPT, max_new_tokens=1).tokens[0]
    twin = (first + 1) % 97
    with torch.no_grad():
        nudge = torch.from_numpy(np.random.default_rng(0).normal(size=64)).float()
        model.lm_head.weight[twin] = model.lm_head.weight[first] + 1e-8 * nudge
    found = diagnose(model, PROMPT, [first], [twin])
    assert found is not None
    assert found.is_near_tie
    assert "near-tie" in str(found)
