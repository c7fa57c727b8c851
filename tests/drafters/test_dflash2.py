"""DFlash2: convolutions and selector against their formulas, the walk by the race, and refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import array_api_compat as compat
import numpy as np
import pytest
import torch
from dflash_files import (
    LAYER,
    LAYERS,
    SECOND,
    VOCAB,
    WIDTH,
    flat_second,
    of_speculators_second,
    write,
    write_second,
)
from tiny_heads import tiny_llama

import forerun as fr
from forerun.base.errors import InputError, UnsupportedError
from forerun.drafters import Block
from forerun.drafters.block.drafter import runner_for
from forerun.drafters.block.local_conv import AFTER, BEFORE, LocalConv
from forerun.drafters.block.selector import Selector
from forerun.generation.choosing import make_drafter
from forerun.noise.race import exponentials, seed_key
from forerun.testing import Witness, check_drafter
from forerun.trees.tree import Tree

XP = compat.array_namespace(np.empty(0))
PROMPTS = [[5, 9, 3], [7] * 11, [1, 2, 30, 4, 50, 6]]
WARM = fr.Sampling(temperature=0.9, seed=3)
GREEDY = fr.Sampling(temperature=0.0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_second(tmp_path / "second")


def outputs(folder: Path, target: Any, states: Any, tokens: list[int]) -> Any:
    """Logits, and what the selector reads, (N, V + rank), after a text."""
    runner = runner_for(Block(folder).source, target)
    return runner.extend(runner.start(1, 40), [0], [states], [tokens[1:]])[0]


def inputs() -> tuple[Any, list[int]]:
    torch.manual_seed(1)
    return torch.randn(9, len(LAYERS) * WIDTH) * 2, torch.randint(VOCAB, (10,)).tolist()


def test_a_convolution_is_its_formula(folder):
    """Channel c of entry i: the sum over taps t of (fixed[t, c] + own[t, group of c]) x[i - t, c],
    nothing from before the block."""
    design, rng = Block(folder).design, np.random.default_rng(0)
    conv = LocalConv(design).double()
    for weight in conv.parameters():
        weight.data = torch.from_numpy(rng.standard_normal(weight.shape))
    values, inside = rng.standard_normal((2, 3, 4, WIDTH))
    for side in (BEFORE, AFTER):
        with torch.no_grad():
            found = conv(torch.from_numpy(values), torch.from_numpy(inside), side).numpy()
        taps, group = design.conv_taps, design.conv_group
        rows = conv.kernel.weight.data.numpy().reshape(2, taps, WIDTH // group, WIDTH)[side]
        fixed = conv.base.data.numpy()[side]
        expected = np.zeros_like(values)
        for row, entry, channel in np.ndindex(*values.shape):
            for tap in range(min(taps, entry + 1)):
                own = rows[tap, channel // group] @ inside[row, entry]
                expected[row, entry, channel] += (fixed[tap, channel] + own) * values[
                    row, entry - tap, channel
                ]
        np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize(("multiplier", "cap"), [(1.0, None), (0.5, None), (1.0, 2.0)])
def test_scores_are_their_formula(multiplier, cap):
    """The candidates are the likeliest; each gets <before[previous] * entry, after[candidate]>."""
    rng = np.random.default_rng(0)
    before, after = rng.standard_normal((2, 30, 4)).astype(np.float32)
    found = rng.standard_normal((2, 34)).astype(np.float32)
    rows, previous = [1, 0, 1], [3, 3, 29]
    selector = Selector(before, after, 5, multiplier, cap)
    tokens, scores = selector.candidates(found, rows, previous)
    for node, (row, token) in enumerate(zip(rows, previous, strict=True)):
        logits, entry = found[row, :30], found[row, 30:]
        best = sorted(range(30), key=lambda each: -logits[each])[:5]
        assert tokens[node].tolist() == best
        for place, candidate in enumerate(best):
            own = logits[candidate] * multiplier
            own = own if cap is None else cap * np.tanh(own / cap)
            expected = own + (before[token] * entry * after[candidate]).sum()
            assert scores[node, place] == pytest.approx(expected, abs=1e-5)


def test_both_layouts_are_one_drafter_on_both_passes(target, tmp_path):
    found = []
    for name, about in (("flat", flat_second()), ("other", of_speculators_second())):
        made: Any = make_drafter(f"dflash:{write_second(tmp_path / name, about)}")
        assert made.selector.width == SECOND["selector_top_k"]
        found.append(outputs(tmp_path / name, target, *inputs()))
    np.testing.assert_array_equal(*found)
    assert found[0].shape == (3, VOCAB + SECOND["selector_rank"])
    plain = outputs(tmp_path / "flat", fr.wrap(tiny_llama(seed=3)), *inputs())
    np.testing.assert_allclose(found[0], plain, atol=2e-3 * np.abs(plain).max())


@pytest.mark.parametrize("tree", [None, 6])
@pytest.mark.parametrize("sampling", [GREEDY, WARM])
def test_the_text_is_the_targets(sampling, tree, target, folder):
    how: dict[str, Any] = {"max_new_tokens": 12, "ignore_eos": True, "sampling": sampling}
    found = fr.generate(target, PROMPTS, drafter=Block(folder), draft_length=3, tree=tree, **how)
    plain = fr.generate(target, PROMPTS, drafter=None, **how)
    assert [each.tokens for each in found] == [each.tokens for each in plain]
    assert sum(each.stats.rounds for each in found) < 39


@pytest.mark.parametrize("tree", [None, 9])
@pytest.mark.parametrize("sampling", [GREEDY, WARM])
def test_the_race_walks_the_tables(sampling, tree, folder):
    """Every guess is the first to arrive of those not yet guessed after the same token, among the
    candidates at its place given the token before it."""
    model = tiny_llama(seed=3)
    target, drafter = fr.wrap(model), Block(folder)
    witness = Witness(drafter, VOCAB)
    how: dict[str, Any] = {"max_new_tokens": 4, "ignore_eos": True, "sampling": sampling}
    fr.generate(target, PROMPTS, drafter=witness, draft_length=3, tree=tree, **how)
    drafts = [each for each in witness.seen if each.guess.tokens]
    assert drafts
    for each in drafts:
        text, guess = list(each.text), each.guess
        states = model(torch.tensor([text[:-1]]), output_hidden_states=True).hidden_states
        told = torch.cat([states[layer][0] for layer in LAYERS], -1).detach()
        places = outputs(folder, target, told, text)
        parents = guess.parents or range(-1, len(guess.tokens) - 1)
        depth, known = [], {}
        for node, parent in enumerate(parents):
            depth.append(0 if parent < 0 else depth[parent] + 1)
            known.setdefault(parent, []).append(guess.tokens[node])
        for parent, children in known.items():
            level = 0 if parent < 0 else depth[parent] + 1
            previous = text[-1] if parent < 0 else guess.tokens[parent]
            (ids,), (scores,) = drafter.selector.candidates(
                places[level : level + 1], [0], [previous]
            )
            arrivals = np.exp(scores.astype(np.float64) / (sampling.temperature or 1))
            if sampling.temperature:
                key = seed_key(XP, [each.turn.seed], None)
                at = np.array([each.turn.position + level])
                arrivals /= exponentials(XP, key, at, ids[None])[0]
            order = ids[np.argsort(-arrivals)].tolist()
            assert sorted(children) == sorted(order[: len(children)])


@pytest.mark.parametrize(
    ("rule", "tree"), [("ratio", None), ("block", None), ("traversal", Tree.of_branching((2, 1)))]
)
def test_rules_with_coins_judge_its_guesses(rule, tree, folder):
    how: dict[str, Any] = {"sampling": WARM, "max_new_tokens": 12, "ignore_eos": True}
    target = fr.wrap(tiny_llama(seed=3))
    found = fr.generate(
        target, PROMPTS, drafter=Block(folder), rule=rule, tree=tree, draft_length=3, **how
    )
    assert all(len(each.tokens) == 12 for each in found)
    assert sum(each.stats.accepted for each in found) > 0


@pytest.mark.parametrize("target", ["lean"], indirect=True)
def test_the_promises_of_every_drafter(target, folder):
    check_drafter(lambda: Block(folder), target, prompts=PROMPTS)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"conv_kernel_size": None}, "conv_kernel_size is no whole number from 1 to 4"),
        ({"conv_kernel_size": 5}, "conv_kernel_size is no whole number from 1 to 4"),
        ({"conv_group_size": 5}, "does not divide hidden_size"),
        ({"selector_rank": 7}, "another shape"),
        ({"selector_rank": None}, "selector_rank is no whole number"),
        ({"selector_top_k": VOCAB + 1}, "selector_top_k is no whole number from 1 to 61"),
        ({"input_embedding_scale": "2"}, "input_embedding_scale is no positive number"),
        ({"final_logit_softcapping": -1.0}, "final_logit_softcapping is no positive number"),
    ],
)
def test_broken_descriptions_are_refused(changes, match, tmp_path):
    with pytest.raises(InputError, match=match):
        Block(write_second(tmp_path, flat_second(**changes)))


@pytest.mark.parametrize(
    "name",
    [
        "candidate_selector.predecessor_codebook",
        "candidate_selector.hidden_projection.weight",
        "layers.1.mlp_conv.base_kernel",
        "layers.0.attention_conv.kernel_projection.weight",
    ],
)
def test_a_tensor_that_was_dropped_is_named(name, tmp_path):
    with pytest.raises(InputError, match=f"config.json promises.*{name}"):
        Block(write_second(tmp_path, **{name: None}))


def test_tables_that_are_no_numbers_are_refused(tmp_path):
    table = torch.full((VOCAB, SECOND["selector_rank"]), torch.nan)
    with pytest.raises(InputError, match="NaN"):
        Block(write_second(tmp_path, **{"candidate_selector.successor_codebook": table}))


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"output_multiplier": 2.0, "final_logit_softcapping": 30.0}, "engines differ"),
        ({"lilicorr_num_heads": 4}, "a setting that is not known"),
        ({"use_swa": True}, "sliding window"),
    ],
)
def test_another_function_is_refused(changes, match, tmp_path):
    with pytest.raises(UnsupportedError, match=match):
        Block(write_second(tmp_path, flat_second(**changes)))


def test_a_smaller_draft_vocabulary_is_refused(tmp_path):
    about = of_speculators_second(draft_vocab_size=40)
    kept = {"d2t": torch.zeros(40, dtype=torch.int64), "lm_head.weight": torch.randn(40, WIDTH)}
    with pytest.raises(UnsupportedError, match="its selector knows 61 tokens, its head 40"):
        Block(write_second(tmp_path, about, **kept))


def test_the_scales_are_computed_with(tmp_path):
    target = fr.wrap(tiny_llama(seed=3))
    scaled = flat_second(input_embedding_scale=3.0, output_multiplier=0.5)
    found = Block(write_second(tmp_path / "scaled", scaled))
    assert (found.selector.multiplier, found.design.embedding_scale) == (0.5, 3.0)
    plain = outputs(write_second(tmp_path / "plain"), target, *inputs())
    assert np.abs(outputs(tmp_path / "scaled", target, *inputs()) - plain).max() > 0.1


def test_plain_dflash_with_such_tensors_is_still_refused(tmp_path):
    """Its config.json says nothing of a selector, so its sizes are not known."""
    with pytest.raises(UnsupportedError, match="candidate_selector"):
        Block(write(tmp_path, flat_of_first(), **{"candidate_selector.x": torch.zeros(2)}))


def flat_of_first() -> dict[str, Any]:
    return flat_second() | {"architectures": ["DFlashDraftModel"]}


@pytest.mark.slow
@pytest.mark.parametrize("anchor", [False, True])
def test_the_library_that_writes_them_computes_the_same(anchor, tmp_path):
    """In float32, on random weights, against the modules of `speculators` itself."""
    pytest.importorskip("speculators")
    from speculators.config import SpeculatorsConfig, VerifierConfig
    from speculators.models.dflash2 import DFlash2DraftModel, DFlash2SpeculatorConfig
    from speculators.proposals.greedy import GreedyTokenProposalConfig
    from transformers import Qwen3Config

    layer = Qwen3Config(**{k: v for k, v in LAYER.items() if k != "model_type"})
    layer._attn_implementation = "eager"
    about = DFlash2SpeculatorConfig(
        transformer_layer_config=layer, draft_vocab_size=VOCAB, block_size=4, mask_token_id=7,
        aux_hidden_state_layer_ids=list(LAYERS), sample_from_anchor=anchor, **SECOND,
        speculators_config=SpeculatorsConfig(
            algorithm="dflash2", default_proposal_method="greedy",
            verifier=VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"]),
            proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=3)],
        ),
    )  # fmt: skip
    theirs = DFlash2DraftModel(about)
    torch.manual_seed(0)
    for weight in theirs.parameters():
        scale = weight.shape[-1] ** -0.5 if weight.ndim > 1 else 0.2
        weight.data = torch.randn_like(weight) * scale + (weight.ndim == 1)
    model = tiny_llama(seed=3)
    theirs.embed_tokens.weight.data = model.get_input_embeddings().weight.data.clone()
    theirs.lm_head.weight.data = model.get_output_embeddings().weight.data.clone()
    theirs.eval().save_pretrained(tmp_path)
    states, tokens = inputs()
    ids = torch.tensor([[tokens[-1], 7, 7, 7]])
    with torch.no_grad():
        told = theirs.hidden_norm(theirs.fc(states[None]))
        hidden = theirs.embed_tokens(ids)
        turned = theirs.rotary_emb(hidden, torch.arange(len(states) + 4)[None])
        for one in theirs.layers:
            hidden = one(
                hidden_states=hidden, target_hidden=told, attention_mask=None,
                position_embeddings=turned,
            )  # fmt: skip
        hidden = theirs.norm(hidden)[:, 0 if anchor else 1 :]
        logits = theirs.lm_head(hidden)
        previous = torch.randint(VOCAB, logits.shape[:2])
        expected_ids, expected = theirs.candidate_selector.select(logits, hidden, previous)
    made = Block(tmp_path)
    found = outputs(tmp_path, fr.wrap(model), states, tokens)
    assert np.abs(found[:, :VOCAB] - logits[0].numpy()).max() / np.abs(logits).max() < 1e-5
    rows = range(len(found))
    ours, scores = made.selector.candidates(found, rows, previous[0].tolist())
    np.testing.assert_array_equal(ours, expected_ids[0].numpy())
    np.testing.assert_allclose(scores, expected[0].numpy(), atol=1e-4)
