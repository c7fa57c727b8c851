"""Trees and hidden states on the lean pass: to the last bit what a path run alone gives."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from tiny_models import Architecture, Driver, largest, random_tokens, random_tree

pytest.importorskip("numba")

from forerun.base.errors import InputError
from forerun.lean.model import LeanModel
from forerun.models import HuggingFaceModel
from forerun.models.base import Inspectable
from forerun.trees.tree import Tree


def tiny(kind: str = "llama", **options: Any) -> Any:
    return Architecture(kind, "", options, dtype=torch.float32).build()


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("llama", {}),
        ("qwen3", {"num_attention_heads": 24, "head_dim": 8}),
        ("mistral", {"sliding_window": None, "num_key_value_heads": 1, "head_dim": 64}),
        ("mistral", {"sliding_window": 3, "head_dim": 16}),  # shorter than some branches
        ("gemma3_text", {"sliding_window": 6, "head_dim": 16, "num_hidden_layers": 7}),
    ],
)
def test_ragged_trees_and_what_follows_them(kind: str, options: dict[str, Any]) -> None:
    model = tiny(kind, **options)
    lean = LeanModel(model, num_threads=2)
    assert lean.scores_trees
    assert Driver(lean, model, num_rows=3).play_trees(num_rounds=20, seed=0) < 1e-4


def test_a_node_has_the_bits_of_its_path_run_alone() -> None:
    """Also where the tree crosses panels of keys, tiles of queries and passes."""
    model = tiny("qwen2", num_attention_heads=6, num_key_value_heads=2, head_dim=16)
    lean = LeanModel(model, num_threads=3)
    generator = random.Random(0)
    for length, size in ((1, 5), (29, 12), (61, 40), (20, 150)):
        text, draft = random_tokens(generator, length), random_tokens(generator, size)
        tree = random_tree(generator, size)
        state = lean.start(2, 400)
        lean.score(state, [1], [text[: length // 2 + 1]], [1])
        lean.commit(state, [1], [length // 2])
        pending = text[length // 2 :]
        tokens = [random_tokens(generator, 7), pending + draft]
        logits = lean.score(state, [0, 1], tokens, [3, size], [None, tree.parents])[1]
        for node in range(0, size, 1 if size < 50 else 7):
            alone = text + [draft[i] for i in tree.path(node)]
            expected = lean.score(lean.start(1, 400), [0], [alone], [1])[0, 0]
            assert torch.equal(logits[node], expected)
        path = tree.path(max(range(size), key=tree.depths.__getitem__))
        first = len(pending)
        lean.commit(state, [1], [[*range(first), *(first + node for node in path)]])
        text += [draft[i] for i in path]
        after = lean.score(state, [1], [[5, 6]], [2])[0]
        fresh = lean.score(lean.start(1, 400), [0], [[*text, 5, 6]], [2])[0]
        assert torch.equal(after, fresh)


def test_a_tree_grows_and_is_not_fed_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    lean = LeanModel(tiny(), num_threads=1)
    state = lean.start(1, 64)
    fed: list[int] = []
    original = state._pass
    monkeypatch.setattr(
        state, "_pass", lambda plan, out: (fed.append(len(plan.ids)), original(plan, out))[1]
    )
    text, draft, parents = [3, 1, 4], [9, 2, 6, 5], [-1, -1, 1, 0]
    for size, new in ((2, 2), (3, 1), (4, 1)):
        tree = [parents[:size]]
        logits = lean.score(state, [0], [text + draft[:size]], [new], tree)
    assert fed == [5, 1, 1]
    alone = lean.score(lean.start(1, 64), [0], [[*text, 9, 5]], [1])
    assert torch.equal(logits, alone)
    lean.score(state, [0], [text + draft], [1], [[-1, -1, 0, 0]])  # another parent: from there on
    assert fed == [5, 1, 1, 2]


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_hidden_states_are_those_of_transformers(kind: str) -> None:
    model = tiny(kind, num_hidden_layers=3)
    lean = LeanModel(model, num_threads=2)
    plain = HuggingFaceModel(model)
    assert isinstance(lean, Inspectable)
    assert (lean.hidden_size, lean.num_layers) == (plain.hidden_size, plain.num_layers) == (32, 3)
    states = [each.start(2, 400) for each in (lean, plain)]
    generator = random.Random(0)
    prompts = [random_tokens(generator, 100), random_tokens(generator, 90)]
    tree, draft = Tree((-1, -1, 0, 1, 1)), random_tokens(generator, 5)
    kept = [[*range(100), 101, 104], 90]
    for model, state in zip((lean, plain), states, strict=True):
        model.score(state, [0], [prompts[0]], [1])  # unwatched: to be scored again
        model.watch(state, [3, 1, 0])
        tokens = [prompts[0] + draft, prompts[1] + draft[:3]]
        model.score(state, [0, 1], [prompts[0] + draft[:2], prompts[1]], [1, 1], [[-1, -1], None])
        model.score(state, [0, 1], tokens, [2, 2], [tree.parents, None])
        model.commit(state, [0, 1], kept)
    for row, count in ((0, 102), (1, 90)):
        ours, theirs = lean.watched(states[0], row), plain.watched(states[1], row)
        assert ours.shape == theirs.shape == (count, 3 * 32)
        assert largest(ours - theirs) < 1e-4
    lean.release(states[0], 0)
    assert lean.watched(states[0], 0) is None
    assert lean.watched(states[0], 1) is not None


def test_what_cannot_be_watched_or_kept_is_refused() -> None:
    lean = LeanModel(tiny(), num_threads=1)
    state = lean.start(1, 16)
    with pytest.raises(InputError, match="No hidden states"):
        lean.watched(state, 0)
    for layers in ([], [3], [-1]):
        with pytest.raises(InputError, match=r"0 \.\. 2"):
            lean.watch(state, layers)
    with pytest.raises(InputError, match="not an earlier node"):
        lean.score(state, [0], [[1, 2, 3]], [2], [[-1, 1]])
    lean.score(state, [0], [[1, 2, 3]], [2], [[-1, -1]])
    with pytest.raises(InputError, match="can only keep a path"):
        lean.commit(state, [0], [[0, 1, 2]])
