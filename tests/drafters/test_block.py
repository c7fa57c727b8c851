"""Drafters that guess a block in one pass: texts, trees, what a guess is, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import array_api_compat as compat
import numpy as np
import pytest
import torch
from tiny_blocks import block_network_of, save_block
from tiny_heads import VOCAB_SIZE, save_drafter, tiny_llama

import forerun as fr
from forerun.base.errors import InputError, UnsupportedError
from forerun.drafters import Block, Heads
from forerun.generation.choosing import make_drafter, usual_drafter
from forerun.noise.race import exponentials, seed_key
from forerun.testing import Witness, check_drafter
from forerun.trees.tree import Tree

XP = compat.array_namespace(np.empty(0))
PROMPTS = [[5, 9, 3], [7] * 11, [1, 2, 30, 4, 50, 6]]
GREEDY = fr.Sampling(temperature=0.0)
WARM = fr.Sampling(temperature=0.8, seed=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("block")
    save_block(place, tiny_llama(seed=3))
    return place


def laws_after(folder: Path, text: list[int]) -> Any:
    """Logits (N, Vd) after a text, whose last token the target has not seen: one plain pass over
    the whole text, without a cache."""
    trained = Block(folder).source
    network, model = block_network_of(trained), tiny_llama(seed=3)
    design, told = network.design, len(text) - 1
    with torch.no_grad():
        states = model(torch.tensor([text[:-1]]), output_hidden_states=True).hidden_states
        features = network.features(torch.cat([states[layer][0] for layer in design.layers], -1))
        hidden = network.entries(model.get_input_embeddings().weight, torch.tensor(text[-1]))
        turned = network.angles(torch.arange(told + design.block_size))
        for layer in network.layers:
            inside = layer.norm(hidden)
            q, k, v = layer.split(torch.cat((features, inside)), *turned)
            group = q.shape[1] // k.shape[1]
            k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
            scores = torch.einsum("qhd,khd->hqk", q[told:], k) / q.shape[-1] ** 0.5
            hidden = layer.add(
                hidden, torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).flatten(1)
            )
        return trained.tokens, network.logits(network.outputs(hidden)).numpy()


@pytest.mark.parametrize("from_anchor", [True, False])
def test_greedy_guesses_are_the_likeliest_of_each_law(from_anchor, target, tmp_path):
    save_block(tmp_path, tiny_llama(seed=3), anchor_guesses=from_anchor)
    witness = Witness(Block(tmp_path), VOCAB_SIZE)
    how: dict[str, Any] = {"sampling": GREEDY, "max_new_tokens": 9, "ignore_eos": True}
    found = fr.generate(target, PROMPTS, drafter=witness, draft_length=6, **how)
    plain = fr.generate(target, PROMPTS, drafter=None, **how)
    assert [each.tokens for each in found] == [each.tokens for each in plain]
    drafts = [each for each in witness.seen if each.guess.tokens]
    most = 4 if from_anchor else 3
    assert max(len(each.guess.tokens) for each in drafts) == most
    for each in drafts:
        tokens, laws = laws_after(tmp_path, list(each.text))
        expected = tokens[laws.argmax(1)].tolist()
        assert each.guess.tokens == expected[: len(each.guess.tokens)]


@pytest.mark.parametrize(
    ("rule", "tree"),
    [
        ("match", None), ("match", 7), ("ratio", None), ("block", None),
        ("traversal", Tree.of_branching((2, 1))),
    ],
)  # fmt: skip
def test_all_rules_judge_its_guesses(rule, tree, target, folder):
    how: dict[str, Any] = {"sampling": WARM, "max_new_tokens": 12, "ignore_eos": True}
    about: dict[str, Any] = {"rule": rule, "tree": tree, "draft_length": 3}
    found = fr.generate(target, PROMPTS, drafter=Block(folder), **about, **how)
    assert all(len(each.tokens) == 12 for each in found)
    assert sum(each.stats.accepted for each in found) > 0
    if rule == "match":
        plain = fr.generate(target, PROMPTS, drafter=None, **how)
        assert [each.tokens for each in found] == [each.tokens for each in plain]


def test_raced_trees_hold_the_best_products_of_all_levels(folder):
    """All levels are known at once, so a tree is exactly the best one of its size."""
    target = fr.wrap(tiny_llama(seed=3))
    witness = Witness(Block(folder), VOCAB_SIZE)
    fr.generate(
        target, PROMPTS[:1], drafter=witness, tree=9, draft_length=4, sampling=WARM,
        max_new_tokens=8, ignore_eos=True,
    )  # fmt: skip
    drafts = [each for each in witness.seen if len(each.guess.tokens) == 9]
    assert drafts
    for each in drafts:
        values, parents = each.guess.values, each.guess.parents
        chances: dict[int, dict[int, float]] = {}
        depth = []
        for token, value, parent in zip(each.guess.tokens, values, parents, strict=True):
            depth.append(0 if parent < 0 else depth[parent] + 1)
            share = value if parent < 0 else value / values[parent]
            known = chances.setdefault(depth[-1], {}).setdefault(token, share)
            assert share == pytest.approx(known)  # one law for all nodes of a level
        assert max(depth) >= 1


@pytest.mark.parametrize("target", ["lean"], indirect=True)
def test_the_promises_of_every_drafter(target, folder):
    check_drafter(lambda: Block(folder), target, prompts=PROMPTS)


def test_it_is_found_beside_its_target(tmp_path):
    model = tiny_llama(seed=3)
    model.save_pretrained(tmp_path)
    save_block(tmp_path / "drafter", model)
    drafter: Any = usual_drafter(fr.load(str(tmp_path), lean=False))
    assert drafter.drafters[0].name == f"block:{tmp_path / 'drafter'}"


def test_other_folders_are_named(folder, tmp_path):
    save_drafter(tmp_path / "heads", tiny_llama(seed=3))
    with pytest.raises(UnsupportedError, match=r"a drafter that Forerun trained.*Name it heads:"):
        Block(tmp_path / "heads")
    with pytest.raises(UnsupportedError, match=r"a block drafter.*Name it block:"):
        Heads(folder)
    with pytest.raises(InputError, match="needs a folder"):
        make_drafter("block")


def test_another_target_is_refused_before_a_pass(folder):
    with pytest.raises(UnsupportedError, match="hidden_size is 48 rather than 32"):
        Block(folder).start(fr.wrap(tiny_llama(hidden_size=48)), 1, 10)


def test_guesses_at_a_temperature_are_those_that_arrive_first(folder):
    target = fr.wrap(tiny_llama(seed=3))
    witness = Witness(Block(folder), VOCAB_SIZE)
    how: dict[str, Any] = {"max_new_tokens": 12, "ignore_eos": True, "draft_length": 4}
    fr.generate(target, PROMPTS[:1], drafter=witness, sampling=WARM, **how)
    drafts = [each for each in witness.seen if each.guess.tokens]
    assert drafts
    for each in drafts:
        tokens, laws = laws_after(folder, list(each.text))
        count = len(each.guess.tokens)
        noise = exponentials(
            XP, seed_key(XP, [each.turn.seed] * count, None),
            each.turn.position + np.arange(count), np.tile(tokens, (count, 1)),
        )  # fmt: skip
        arrivals = np.exp(laws[:count].astype(np.float64) / WARM.temperature) / noise
        assert each.guess.tokens == tokens[arrivals.argmax(1)].tolist()
