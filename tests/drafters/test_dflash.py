"""Published DFlash draft models: both layouts, against the library that writes one of them, and
every trap by its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dflash_files import LAYER, LAYERS, VOCAB, WIDTH, flat, of_speculators, write
from tiny_heads import tiny_llama

import forerun as fr
from forerun.base.errors import InputError, UnsupportedError
from forerun.drafters import Block
from forerun.drafters.block.drafter import runner_for
from forerun.generation.choosing import make_drafter

PROMPTS = [[5, 9, 3], [7] * 11, [1, 2, 30, 4, 50, 6]]
LAYOUTS = {"flat": flat, "speculators": of_speculators}


def guessed(folder: Path, target: Any, states: Any, tokens: list[int], cut: int) -> Any:
    """Logits (N, V) after a text, told in two parts."""
    runner = runner_for(Block(folder).source, target)
    state = runner.start(1, 40)
    runner.extend(state, [0], [states[:cut]], [tokens[1 : cut + 1]])
    return runner.extend(state, [0], [states[cut:]], [tokens[cut + 1 :]])[0]


def inputs() -> tuple[Any, list[int]]:
    torch.manual_seed(1)
    return torch.randn(9, len(LAYERS) * WIDTH) * 2, torch.randint(VOCAB, (10,)).tolist()


def test_both_layouts_are_one_drafter(tmp_path):
    target, found = fr.wrap(tiny_llama(seed=3)), []
    for name, about in LAYOUTS.items():
        folder = write(tmp_path / name, about())
        drafter: Any = make_drafter(f"dflash:{folder}")
        assert drafter.layers == LAYERS
        assert drafter.design.num_guesses == 3
        found.append(guessed(folder, target, *inputs(), cut=4))
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("tree", [None, 6])
def test_the_text_is_the_targets(tree, tmp_path):
    target, folder = fr.wrap(tiny_llama(seed=3)), write(tmp_path, flat())
    for sampling in (fr.Sampling(temperature=0.0), fr.Sampling(temperature=0.9, seed=3)):
        how: dict[str, Any] = {"max_new_tokens": 10, "ignore_eos": True, "sampling": sampling}
        found = fr.generate(
            target, PROMPTS, drafter=f"dflash:{folder}", draft_length=3, tree=tree, **how
        )
        plain = fr.generate(target, PROMPTS, drafter=None, **how)
        assert [each.tokens for each in found] == [each.tokens for each in plain]
        assert sum(each.stats.rounds for each in found) < 33


@pytest.mark.slow
@pytest.mark.parametrize("anchor", [False, True])
@pytest.mark.parametrize("vocab", [VOCAB, 40])
def test_the_library_that_writes_them_computes_the_same(anchor, vocab, tmp_path):
    """In float32, on random weights, against the modules of `speculators` itself."""
    pytest.importorskip("speculators")
    from speculators.config import SpeculatorsConfig, VerifierConfig
    from speculators.models.dflash import DFlashDraftModel, DFlashSpeculatorConfig
    from speculators.proposals.greedy import GreedyTokenProposalConfig
    from transformers import Qwen3Config

    layer = Qwen3Config(**{k: v for k, v in LAYER.items() if k != "model_type"})
    layer._attn_implementation = "eager"
    verifier = VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"])
    about = DFlashSpeculatorConfig(
        transformer_layer_config=layer, draft_vocab_size=vocab, block_size=4, mask_token_id=7,
        aux_hidden_state_layer_ids=list(LAYERS), sample_from_anchor=anchor,
        speculators_config=SpeculatorsConfig(
            algorithm="dflash", verifier=verifier, default_proposal_method="greedy",
            proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=3)],
        ),
    )  # fmt: skip
    theirs = DFlashDraftModel(about)
    torch.manual_seed(0)
    for weight in theirs.parameters():
        scale = weight.shape[-1] ** -0.5 if weight.ndim > 1 else 0.2
        weight.data = torch.randn_like(weight) * scale + (weight.ndim == 1)
    model = tiny_llama(seed=3)
    kept = torch.arange(VOCAB) if vocab == VOCAB else torch.randperm(VOCAB)[:vocab].sort().values
    if vocab < VOCAB:
        is_kept = torch.isin(torch.arange(VOCAB), kept)
        theirs.load_vocab_mappings(is_kept, kept - torch.arange(vocab))
    theirs.embed_tokens.weight.data = model.get_input_embeddings().weight.data.clone()
    if vocab == VOCAB:
        theirs.lm_head.weight.data = model.get_output_embeddings().weight.data.clone()
    theirs.eval().save_pretrained(tmp_path)
    states, tokens = inputs()
    length = len(states)
    ids = torch.tensor([[tokens[-1], 7, 7, 7]])
    with torch.no_grad():
        told = theirs.hidden_norm(theirs.fc(states[None]))
        hidden = theirs.embed_tokens(ids)
        turned = theirs.rotary_emb(hidden, torch.arange(length + 4)[None])
        for one in theirs.layers:
            hidden = one(
                hidden_states=hidden, target_hidden=told, attention_mask=None,
                position_embeddings=turned,
            )  # fmt: skip
        expected = theirs.lm_head(theirs.norm(hidden))[0, 0 if anchor else 1 :].numpy()
    found = guessed(tmp_path, fr.wrap(model), states, tokens, cut=4)
    assert np.abs(found - expected).max() / np.abs(expected).max() < 1e-5
    assert Block(tmp_path).tokens.tolist() == kept.tolist()


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"quantization_config": {"bits": 4}}, "quantised"),
        ({"dflash_config": {"causal": True}}, "does not see later ones"),
        ({"dflash_config": {"use_swa": True}}, "sliding window"),
        ({"dflash_config": {"attention_sink_bias": True}}, "sinks"),
        ({"dflash_config": {"projector_type": "mlp"}}, "fuses states by 'mlp'"),
        ({"dflash_config": {"gates": 3}}, "gates is 3, a setting that is not known"),
        ({"final_logit_softcapping": 30.0}, "logits are capped"),
        ({"output_multiplier": 2.0}, "logits are scaled"),
        ({"use_gemma_norm": True}, "norms add one to their weights"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "other kinds"),
        ({"hidden_act": "gelu"}, "activation is gelu"),
    ],
)
def test_another_function_is_refused(changes, match, tmp_path):
    inside = flat()["dflash_config"] | changes.pop("dflash_config", {})
    with pytest.raises(UnsupportedError, match=match):
        Block(write(tmp_path, flat(**changes, dflash_config=inside)))


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"block_size": 1}, "block_size is no whole number from 2"),
        ({"dflash_config": {"mask_token_id": 61}}, "mask_token_id is no whole number"),
        ({"dflash_config": {"mask_token_id": None}}, "mask_token_id is no whole number"),
        ({"dflash_config": {"target_layer_ids": None}}, "target_layer_ids is no list"),
        ({"dflash_config": {"target_layer_ids": [1, 1]}}, "names a layer twice"),
        ({"dflash_config": {"target_layer_ids": [-2, 1]}}, "none that there is"),
        ({"num_hidden_layers": 3}, "11 missing: layers.2"),
        ({"intermediate_size": 40}, "another shape"),
        ({"hidden_size": -4}, "hidden_size is no size"),
        ({"dflash_config": "on"}, "dflash_config is no object"),
    ],
)
def test_broken_descriptions_are_refused(changes, match, tmp_path):
    inside = changes.pop("dflash_config", {})
    inside = flat()["dflash_config"] | inside if isinstance(inside, dict) else inside
    with pytest.raises(InputError, match=match):
        Block(write(tmp_path, flat(**changes, dflash_config=inside)))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("markov_head.markov_w1.weight", "markov_head"),
        ("candidate_selector.hidden_projection.weight", "candidate_selector"),
        ("layers.0.attention_conv.base_kernel", "attention_conv"),
    ],
)
def test_parts_of_newer_kinds_are_refused_by_name(name, kind, tmp_path):
    with pytest.raises(UnsupportedError, match=kind):
        Block(write(tmp_path, flat(), **{name: torch.zeros(2, 2)}))


def test_tensors_that_are_no_numbers_are_refused(tmp_path):
    with pytest.raises(InputError, match="NaN"):
        Block(write(tmp_path, flat(), **{"norm.weight": torch.full((WIDTH,), torch.nan)}))


def test_another_target_is_named(tmp_path):
    folder = write(tmp_path, flat(num_target_layers=6))
    with pytest.raises(UnsupportedError, match="num_layers is 5 rather than 6"):
        Block(folder).start(fr.wrap(tiny_llama(seed=3)), 1, 10)
    inside = {"mask_token_id": 7, "target_layer_ids": [1, 4]}
    folder = write(tmp_path / "last", flat(dflash_config=inside))
    with pytest.raises(UnsupportedError, match="or its last"):
        Block(folder).start(fr.wrap(tiny_llama(seed=3)), 1, 10)
