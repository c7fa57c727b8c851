"""EAGLE-3 heads that the library `speculators` itself writes and computes, where it is installed:
both ways, in float32, through a prompt and four own steps."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from test_eagle3 import NUM_OWN, TARGETS, VOCAB, WIDTH, model, our_steps
from tiny_heads import save_drafter
from transformers import LlamaConfig, Qwen3Config

from forerun.drafters.heads.eagle3_export import export

pytest.importorskip("speculators")
pytestmark = pytest.mark.slow

LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
}  # fmt: skip
SWITCHES: dict[str, dict[str, Any]] = {
    "none": {},
    "fc_norm": {"fc_norm": True},
    "norm_before_fc": {"norm_before_fc": True},
    "norm_before_residual": {"norm_before_residual": True},
    "norm_output": {"norm_output": True},
    "all": {"fc_norm": True, "norm_before_residual": True, "norm_output": True},
    "full vocabulary": {"draft_vocab_size": VOCAB},
    "four layers read": {"eagle_aux_hidden_state_layer_ids": [1, 2, 3, 4]},
    "llama3": {"layer": {"rope_parameters": LLAMA3}},
    "three layers": {"layer": {"num_hidden_layers": 3}},
    "biases": {"layer": {"attention_bias": True}},
    "head size": {"layer": {"head_dim": 16}},
    "qwen3": {"family": Qwen3Config},
}


def theirs(**changes: Any) -> Any:
    """One of their draft models with random weights."""
    from speculators.config import SpeculatorsConfig, VerifierConfig
    from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
    from speculators.proposals.greedy import GreedyTokenProposalConfig

    sizes = {
        "vocab_size": VOCAB, "hidden_size": WIDTH, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 48, "num_hidden_layers": 1,
        "rms_norm_eps": 1e-5, "max_position_embeddings": 256,
    } | changes.pop("layer", {})  # fmt: skip
    layer = changes.pop("family", LlamaConfig)(**sizes)
    layer._attn_implementation = "eager"
    about = Eagle3SpeculatorConfig(
        transformer_layer_config=layer,
        speculators_config=SpeculatorsConfig(
            algorithm="eagle3",
            proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=3)],
            default_proposal_method="greedy",
            verifier=VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"]),
        ),
        **{"draft_vocab_size": 40, "eagle_aux_hidden_state_layer_ids": [2, 3, 4]} | changes,
    )
    made = Eagle3DraftModel(about)
    torch.manual_seed(0)
    for weight in made.parameters():
        scale = weight.shape[-1] ** -0.5 if weight.ndim > 1 else 0.2
        weight.data = torch.randn_like(weight) * scale + (weight.ndim == 1)
    if about.draft_vocab_size < VOCAB:
        kept = torch.randperm(VOCAB)[: about.draft_vocab_size].sort().values
        is_kept = torch.isin(torch.arange(VOCAB), kept)
        made.load_vocab_mappings(is_kept, kept - torch.arange(len(kept)))
    return made.eval()


def their_steps(head: Any, states: Any, tokens: list[int], count: int) -> list[Any]:
    """Logits after the last token and after each of `count` likeliest ones, by their modules."""
    about, offsets = head.config, head.d2t
    with torch.no_grad():
        hidden = states[None]
        if head.input_norm is not None:
            hidden = head.input_norm(hidden)
        if head.fc_norm is not None:
            pieces = hidden.chunk(len(head.fc_norm), -1)
            hidden = torch.cat([n(p) for n, p in zip(head.fc_norm, pieces, strict=True)], -1)
        features, text, found = head.fc(hidden), list(tokens[1:]), []
        for _ in range(count + 1):
            at = torch.arange(1, len(text) + 1)[None]
            mask = torch.full((1, 1, len(text), len(text)), -torch.inf).triu(1)
            values = torch.cat((head.embed_tokens(torch.tensor([text])), features), -1)
            turned = head.rotary_emb(values, at)
            for layer in head.layers:
                values = layer(values, attention_mask=mask, position_embeddings=turned)
                values = values[0] if isinstance(values, tuple) else values
            normed = head.norm(values)
            found.append(head.lm_head(normed)[0, -1])
            best = int(found[-1].argmax())
            text.append(best + (0 if offsets is None else int(offsets[best])))
            following = normed if about.norm_output else values
            features = torch.cat((features, following[:, -1:]), 1)
    return found


def error(found: list[Any], expected: list[Any]) -> float:
    """The largest difference of logits, in parts of the largest logit."""
    pairs = zip(found, expected, strict=True)
    return max(float(np.abs(a - b.numpy()).max() / b.abs().max()) for a, b in pairs)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("switch", SWITCHES)
def test_what_they_write_is_read(switch: str, target: str, tmp_path: Path) -> None:
    head = theirs(**SWITCHES[switch])
    head.save_pretrained(tmp_path)
    torch.manual_seed(1)
    states = torch.randn(9, WIDTH * len(head.config.eagle_aux_hidden_state_layer_ids)) * 2
    tokens = torch.randint(VOCAB, (10,)).tolist()
    expected = their_steps(head, states, tokens, NUM_OWN)
    worst = error(our_steps(tmp_path, TARGETS[target](), states, tokens, 5), expected)
    print(f"{switch}, {target}: {worst:.1e}")
    assert worst <= 1e-5


def test_what_we_write_is_read(tmp_path: Path) -> None:
    from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig

    saved, random = save_drafter(tmp_path / "ours", model()), np.random.default_rng(0)
    weights = {  # no longer in 8 bits, with which the lean pass would multiply whole numbers
        name: values + np.float32(0.01) * random.normal(size=values.shape).astype(np.float32)
        for name, values in saved.weights.items()
    }
    trained = replace(saved, weights=weights)
    export(trained, tmp_path / "theirs", "speculators", "float32")
    about = json.loads((tmp_path / "theirs" / "config.json").read_text())
    config = Eagle3SpeculatorConfig(**about)
    config.transformer_layer_config._attn_implementation = "eager"
    head = Eagle3DraftModel(config).eval()
    stored = load_file(tmp_path / "theirs" / "model.safetensors")
    missing, unexpected = head.load_state_dict(stored, strict=False)
    assert not unexpected
    assert set(missing) <= {
        "embed_tokens.weight",
        "verifier_lm_head.weight",
        "verifier_norm.weight",
    }
    head.embed_tokens.weight.data = model().get_input_embeddings().weight.detach()
    torch.manual_seed(1)
    states, tokens = torch.randn(9, trained.design.num_features), [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]
    expected = their_steps(head, states, tokens, NUM_OWN)
    for name, target in TARGETS.items():
        worst = error(our_steps(tmp_path / "theirs", target(), states, tokens, 5), expected)
        print(f"ours, {name}: {worst:.1e}")
        assert worst <= 1e-5
