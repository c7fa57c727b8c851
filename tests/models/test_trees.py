"""A tree scored in one masked pass says what its paths say when they are run alone."""

from __future__ import annotations

import random
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from architectures import ATTENTION, RECURRENT
from tiny_models import (
    VOCAB_SIZE,
    Architecture,
    Driver,
    fresh_logits,
    largest,
    random_tokens,
    random_tree,
)

from forerun.base.errors import InputError, UnsupportedError
from forerun.models import HuggingFaceModel, TableModel
from forerun.models.feed import Feed
from forerun.trees.tree import Tree

CROPPED = [architecture for architecture in ATTENTION if architecture.strategy == "crop"]
OTHERS = [a for a in (*ATTENTION, *RECURRENT) if a.strategy != "crop"]
BUSHY = Tree((-1, -1, 0, 1, 1, 0, 3))


@pytest.mark.parametrize("architecture", CROPPED, ids=str)
def test_nodes_score_like_their_paths(architecture: Architecture) -> None:
    """Ragged batches of random trees and chains, and after each commit the next round."""
    model = architecture.build()
    language_model = HuggingFaceModel(model)
    assert language_model.scores_trees
    worst = Driver(language_model, model, num_rows=3).play_trees(num_rounds=5, seed=1)
    print(f"{architecture}: largest error {worst:.1e}")
    assert worst <= architecture.tolerance


@pytest.mark.parametrize("kind", ["llama", "qwen3", "mistral", "gpt2", "gpt_neox", "phi"])
def test_nodes_score_like_their_paths_in_float32(kind: str) -> None:
    found = next(architecture for architecture in CROPPED if architecture.kind == kind)
    model = found.build().float()
    spread = float(fresh_logits(model, list(range(20))).std())
    worst = Driver(HuggingFaceModel(model), model, num_rows=3).play_trees(num_rounds=6, seed=2)
    assert worst <= 1e-5 * max(spread, 1.0)


@pytest.mark.parametrize("kind", ["mistral", "gemma3_text"])
def test_windows_are_measured_in_positions(kind: str) -> None:
    """On a path longer than the window, with so many other nodes between that slots mislead."""
    options = {"sliding_window": 3, "head_dim": 8, "num_hidden_layers": 6}
    model = Architecture(kind, "crop", options).build()
    driver = Driver(HuggingFaceModel(model), model, 2)
    driver.enter(0, [3, 1, 4, 1, 5])
    driver.enter(1, [9])
    deep = Tree((-1, -1, 1, 1, 3, 3, 5, 5, 7, 7, 9))
    generator = random.Random(8)
    for accepted in (9, 4, 10):
        drafts = [random_tokens(generator, 11), random_tokens(generator, 2)]
        driver.tree_round([0, 1], drafts, [deep, None], [accepted, 0])
    assert driver.worst <= 1e-9


@pytest.mark.parametrize("architecture", OTHERS, ids=str)
def test_models_without_trees_say_so(architecture: Architecture) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        language_model = HuggingFaceModel(architecture.build())
        assert not language_model.scores_trees
        state = language_model.start(1, 8)
    with pytest.raises(UnsupportedError, match=f"cannot score trees.*{architecture.strategy}"):
        language_model.score(state, [0], [[1, 2, 3]], [3], [[-1, -1]])


class CountsForItself(torch.nn.Module):
    """Believes only the first position of a pass, which is right for every chain."""

    def __init__(self, table: Any) -> None:
        super().__init__()
        self.table = table

    def forward(self, x: Any, position_ids: Any) -> Any:
        steps = torch.arange(position_ids.shape[1], device=position_ids.device)
        return self.table(x, position_ids[:, :1] + steps)


def test_a_model_whose_positions_go_wrong_in_trees_is_found_out() -> None:
    model = Architecture("llama", "crop").build()
    assert HuggingFaceModel(model).scores_trees
    model.model.rotary_emb = CountsForItself(model.model.rotary_emb)
    language_model = HuggingFaceModel(model)
    assert language_model.strategy == "crop"
    assert not language_model.scores_trees
    with pytest.raises(UnsupportedError, match=r"cannot score trees.*LlamaForCausalLM.*crop"):
        language_model.score(language_model.start(1, 8), [0], [[1, 2]], [1], [[-1]])


def test_a_wrong_path_is_noticed() -> None:
    """The comparison above can fail: keep the cousin of a node and the next round is off."""
    model = Architecture("llama", "crop").build()
    driver = Driver(HuggingFaceModel(model), model, 1)
    driver.enter(0, [3, 1, 4, 1, 5])
    assert driver.tree_round([0], [[9, 2, 6, 5, 3, 5, 8]], [BUSHY], [6]) <= 1e-9
    assert driver.tree_round([0], [[9, 2, 6, 5, 3, 5, 8]], [BUSHY], [4]) <= 1e-9
    driver.texts[0][-2] = 7  # not the node that was kept
    assert driver.tree_round([0], [[9]], [None], [0]) > 1e-3


@pytest.mark.parametrize("kind", ["llama", "mistral", "gemma3_text"])
def test_a_tree_grows_node_by_node(kind: str) -> None:
    """Nodes that are there already, with the parents they had, are not fed again."""
    options = {"sliding_window": 5, "head_dim": 8} if kind != "llama" else {}
    model = Architecture(kind, "crop", {**options, "num_hidden_layers": 6}).build()
    language_model = HuggingFaceModel(model)
    assert language_model.scores_trees
    num_fed: list[int] = []
    model.get_input_embeddings().register_forward_hook(
        lambda _module, inputs, _output: num_fed.append(inputs[0].shape[1])
    )
    generator = random.Random(3)
    state = language_model.start(2, 64)
    texts = [random_tokens(generator, 11), random_tokens(generator, 4)]
    for _ in range(4):
        pending = [texts[r][state.lengths[r] :] for r in (0, 1)]
        trees = [random_tree(generator, 9) for _ in (0, 1)]
        nodes = [random_tokens(generator, 9) for _ in (0, 1)]
        for size in (2, 3, 6, 9):
            new = size - {2: 0, 3: 2, 6: 3, 9: 6}[size]
            num_fed.clear()
            logits = language_model.score(
                state,
                [0, 1],
                [pending[r] + nodes[r][:size] for r in (0, 1)],
                [new, new],
                [trees[r].parents[:size] for r in (0, 1)],
            )
            if size > 2:
                assert num_fed == [new]
            for r in (0, 1):
                for at, node in enumerate(range(size - new, size)):
                    alone = texts[r] + [nodes[r][i] for i in trees[r].path(node)]
                    assert largest(logits[r, at] - fresh_logits(model, alone)[-1]) <= 1e-9
        paths = [trees[r].path(generator.randint(-1, 8)) for r in (0, 1)]
        firsts = [len(pending[r]) for r in (0, 1)]
        kept = [[*range(firsts[r]), *(firsts[r] + node for node in paths[r])] for r in (0, 1)]
        language_model.commit(state, [0, 1], kept)
        texts = [texts[r] + [nodes[r][i] for i in paths[r]] + [7 + r] for r in (0, 1)]
        assert state.lengths == [len(text) - 1 for text in texts]


def test_the_same_tokens_under_other_parents_are_fed_again() -> None:
    model = Architecture("llama", "crop").build()
    language_model = HuggingFaceModel(model)
    state = language_model.start(1, 64)
    text, nodes = [5, 6, 7], [8, 9, 10, 11]
    for tree in (Tree((-1, 0, 1, 2)), Tree((-1, 0, 0, 2)), Tree((-1, -1, 0, 1)), None):
        parents = None if tree is None else [tree.parents]
        logits = language_model.score(state, [0], [text + nodes], [1], parents)
        path = range(4) if tree is None else tree.path(3)
        alone = text + [nodes[i] for i in path]
        assert largest(logits[0, 0] - fresh_logits(model, alone)[-1]) <= 1e-9


def test_a_long_prompt_with_a_tree_is_scored_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forerun.models.crop.MOST_TOKENS", 8)
    model = Architecture("mistral", "crop", {"sliding_window": 5}).build()
    driver = Driver(HuggingFaceModel(model), model, 2)
    driver.enter(0, [(5 * i) % VOCAB_SIZE for i in range(29)])
    driver.enter(1, [4, 2])
    tree = random_tree(random.Random(5), 14)  # spans two pieces or three
    draft = random_tokens(random.Random(6), 14)
    assert driver.tree_round([0, 1], [draft, [1, 2, 3]], [tree, Tree((-1, -1, 0))], [13, 2]) <= 1e-9
    assert driver.tree_round([0, 1], [[1, 2], [3]], [Tree((-1, -1)), None], [1, 0]) <= 1e-9


def test_what_is_no_path_is_refused() -> None:
    language_model = HuggingFaceModel(Architecture("llama", "crop").build())
    state = language_model.start(1, 64)

    def score(parents: list[int] | None) -> None:
        language_model.score(state, [0], [[1, 2, 3, 4, 5]], [4], [parents])

    with pytest.raises(InputError, match="node 1 is not an earlier node"):
        score([-1, 1, 0])
    with pytest.raises(InputError, match="6 parents for 5 tokens"):
        score([-1] * 6)
    with pytest.raises(InputError, match="2 entries for 1 rows"):
        language_model.score(state, [0], [[1, 2]], [1], [None, None])
    score([-1, -1, 1])
    for kept in ([0, 1, 2, 3], [1], [0, 1, 3, 2], [0, 1, 4], [0, 1, 5], 4):
        with pytest.raises(InputError, match="can only keep a path"):
            language_model.commit(state, [0], [kept])
    with pytest.raises(InputError, match="at most the 5 tokens"):
        language_model.commit(state, [0], [[0, 1, 2, 3, 4, 5]])
    language_model.commit(state, [0], [[0, 1, 3, 4]])
    assert state.lengths == [4]


@pytest.mark.parametrize("strategy", ["snapshot", "recompute"])
def test_without_trees_only_a_beginning_can_be_kept(strategy: Any) -> None:
    language_model = HuggingFaceModel(Architecture("llama", "crop").build(), strategy=strategy)
    state = language_model.start(1, 64)
    language_model.score(state, [0], [[1, 2, 3]], [1])
    with pytest.raises(InputError, match=r"only a beginning.*\[0, 2\].*scores_trees"):
        language_model.commit(state, [0], [[0, 2]])
    language_model.commit(state, [0], [[0, 1]])
    assert state.lengths == [2 if strategy == "snapshot" else 0]


def test_a_feed_knows_what_is_shared() -> None:
    chain, tree = Feed.of([1, 2, 3, 4], None), Feed.of([1, 2, 3, 4], [-1, 0, 0])
    assert chain.shared(tree, 4) == 3  # the last node has another parent
    assert tree.shared(tree, 2) == 2
    assert tree.shared(Feed.of([1, 2, 3, 4], [-1, -1]), 4) == 4  # written otherwise, the same
    assert tree.shared(Feed.of([1, 2, 3, 4], [-1, -1, 0]), 4) == 2
    assert tree.shared(Feed.of([1, 2, 3, 4, 5], [-1, 0, 0, 2]), 9) == 4
    assert Feed.of([1, 2, 3], [-1, 0]) == Feed.of([1, 2, 3], None)


def test_tables_score_trees_path_by_path() -> None:
    model = TableModel.random(5, 3, seed=0)
    state = model.start(2, 16)
    tokens, tree = [[4, 0, 1, 2, 3, 1, 1], [2, 3]], Tree((-1, -1, 0, 1, 1))
    logits = model.score(state, [0, 1], tokens, [6, 1], [tree.parents, None])
    text, nodes = tokens[0][:2], tokens[0][2:]
    for node in range(-1, 5):
        alone = text + [nodes[i] for i in tree.path(node)]
        assert np.allclose(np.exp(logits[0, node + 1]), model.probs(alone))
    assert np.allclose(np.exp(logits[1, 0]), model.probs([2, 3]))
    newest = model.score(state, [0], tokens[:1], [2], [tree.parents])
    assert np.array_equal(newest[0], logits[0, 4:6])
    with pytest.raises(InputError, match="can only keep a path"):
        model.commit(state, [0], [[0, 1, 2, 5]])
    model.commit(state, [0], [[0, 1, 3, 5]])
