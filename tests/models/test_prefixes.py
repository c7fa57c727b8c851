"""Rows that grow, are cut short, and begin as copies of others."""

from __future__ import annotations

import random
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from architectures import ATTENTION, RECURRENT
from random_rows import RandomRows, Scratch
from tiny_models import VOCAB_SIZE, Architecture, fresh_logits, largest, random_tokens

from forerun.base.errors import InputError
from forerun.models import FunctionModel, HuggingFaceModel, TableModel
from forerun.models.base import Prefixes, room

ALL = {str(architecture): architecture for architecture in (*ATTENTION, *RECURRENT)}


def wrapped(model: Any, strategy: Any = "auto") -> HuggingFaceModel:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what each strategy warns of is tested elsewhere
        language_model = HuggingFaceModel(model, strategy=strategy)
        _ = language_model.scores_trees
    return language_model


@torch.inference_mode()
def states_and_logits(model: Any, text: list[int], layers: tuple[int, ...]) -> Scratch:
    done = model(torch.tensor([text]), use_cache=False, output_hidden_states=True)
    states = torch.cat([done.hidden_states[layer][0] for layer in layers], dim=-1)
    return Scratch(done.logits[0], states)


@pytest.mark.parametrize(
    ("kind", "num_operations"),
    [
        ("llama", 150),
        ("gemma3_text", 80),
        ("gpt2", 80),
        pytest.param("llama", 1000, marks=pytest.mark.slow),
    ],
)
def test_random_operations_on_cropped_rows(kind: str, num_operations: int) -> None:
    """Chains and trees, with hidden states watched: gemma3 has sliding windows."""
    architecture, layers = ALL[kind], (0, 2)
    model = architecture.build()
    played = RandomRows(
        wrapped(model),
        lambda text: states_and_logits(model, text, layers),
        num_rows=6,
        seed=1,
        has_trees=True,
        layers=layers,
    ).play(num_operations)
    assert played.worst <= architecture.tolerance
    assert played.num_copied > num_operations
    assert played.num_cut > num_operations / 40


@pytest.mark.parametrize(
    ("kind", "strategy"),
    [("llama", "snapshot"), ("mamba2", "snapshot"), ("lfm2", "snapshot"), ("llama", "recompute")],
)
def test_random_operations_on_other_rows(kind: str, strategy: str) -> None:
    architecture = ALL[kind]
    model = architecture.build()
    played = RandomRows(
        wrapped(model, strategy),
        lambda text: Scratch(fresh_logits(model, text)),
        num_rows=4,
        seed=2,
    ).play(60)
    assert played.worst <= architecture.tolerance
    assert (played.num_copied > 0) == (strategy == "snapshot")
    assert (played.num_cut > 0) == (kind == "llama" and strategy == "snapshot")


def _table(name: str) -> Any:
    table = TableModel.random(vocab_size=4, order=2, seed=3)
    if name == "table":
        return table
    return FunctionModel(lambda ids: np.stack([table.probs(ids[: i + 1]) for i in range(len(ids))]))


@pytest.mark.parametrize("name", ["table", "function"])
def test_random_operations_on_models_that_store_nothing(name: str) -> None:
    model = _table(name)
    played = RandomRows(
        model,
        lambda text: Scratch(model.last_logits(np.array(text), len(text))),
        num_rows=5,
        seed=4,
        has_trees=True,
    ).play(400)
    assert played.worst == 0
    assert played.num_copied == 0


@pytest.mark.parametrize("name", ["llama", "table"])
def test_models_say_that_rows_can_be_copied(name: str) -> None:
    model = _table("table") if name == "table" else wrapped(ALL["llama"].build())
    assert isinstance(model, Prefixes)
    state = model.start(3)
    for row, length in ((3, 1), (-1, 1), (0, -1)):
        with pytest.raises(InputError):
            model.truncate(state, row, length)
        with pytest.raises(InputError):
            model.copy_prefix(state, 1, row, length)
    with pytest.raises(InputError, match="another row that is empty"):
        model.copy_prefix(state, 1, 1, 1)
    assert model.copy_prefix(state, 0, 1, 5) == 0
    model.score(state, [0], [[1, 2]], [1])
    assert model.truncate(state, 0, 5) == 0
    with pytest.raises(InputError, match="at most the 0 tokens"):
        model.commit(state, [0], [1])


def test_a_row_that_stores_something_is_not_overwritten() -> None:
    model = wrapped(ALL["llama"].build())
    state = model.start(2)
    model.score(state, [0, 1], [[1, 2], [3]], [1, 1])
    model.commit(state, [0, 1], [2, 1])
    with pytest.raises(InputError, match="row 0 to row 1, which stores 1 tokens"):
        model.copy_prefix(state, 0, 1, 2)


@pytest.mark.parametrize("kind", ["llama", "mistral"])
def test_growth_changes_no_bit(kind: str) -> None:
    """Rows that grow from nothing score like rows that had room from the start."""
    model = wrapped(ALL[kind].build())
    generator = random.Random(5)
    texts = [random_tokens(generator, count) for count in (120, 90, 33)]
    small, large = model.start(3, 1), model.start(3)
    model.score(large, [0, 1, 2], [random_tokens(generator, 128) for _ in texts], [1, 1, 1])
    shapes = set()
    ends = [0, 0, 0]
    while any(end < len(text) for end, text in zip(ends, texts, strict=True)):
        rows = [row for row in range(3) if ends[row] < len(texts[row])]
        steps = [generator.randint(1, 9) for _ in rows]
        feeds = [
            texts[row][ends[row] : ends[row] + step] for row, step in zip(rows, steps, strict=True)
        ]
        counts = [len(feed) for feed in feeds]
        both = [model.score(state, rows, feeds, counts) for state in (small, large)]
        for index, count in enumerate(counts):
            assert largest(both[0][index, :count] - both[1][index, :count]) <= 1e-12
        for state in (small, large):
            model.commit(state, rows, counts)
        for row, count in zip(rows, counts, strict=True):
            ends[row] += count
        shapes.add(tuple(small._cache.layers[0].keys.shape))
    assert len(shapes) > 1


def test_storage_comes_with_rows_and_tokens() -> None:
    model = wrapped(ALL["llama"].build())
    state = model.start(10_000)

    def shape() -> tuple[int, ...]:
        return tuple(state._cache.layers[1].keys.shape)

    model.score(state, [0], [[1, 2, 3]], [1])
    assert shape() == (1, 2, 64, 8)
    model.score(state, [4, 2], [[1], [2]], [1, 1])
    assert shape() == (5, 2, 64, 8)
    model.commit(state, [4, 2], [1, 1])
    assert model.copy_prefix(state, 4, 5, 1) == 1
    assert shape() == (10, 2, 64, 8)
    model.score(state, [5], [[1] * 70], [1])
    assert shape() == (10, 2, 128, 8)


def test_how_much_is_allocated() -> None:
    assert [room(0, 5, 100), room(5, 6, 100), room(64, 65, 100)] == [5, 10, 100]
    assert [room(100, 101, 100), room(8, 9, 0), room(8, 40, 0)] == [200, 16, 40]


def test_a_long_prefix_is_computed_once() -> None:
    """Eight copies of a thousand tokens: no pass, and every row goes on like the first."""
    architecture = Architecture("llama", "crop", {"max_position_embeddings": 1100})
    model = architecture.build()
    language_model = wrapped(model)
    state = language_model.start(9)
    text = random_tokens(random.Random(6), 1000)
    language_model.score(state, [0], [text], [1])
    language_model.commit(state, [0], [1000])
    num_passes: list[int] = []
    model.register_forward_pre_hook(lambda *_: num_passes.append(1))
    for row in range(1, 9):
        assert language_model.copy_prefix(state, 0, row, 1000) == 1000
    assert not num_passes
    ends = [[row, 7] for row in range(9)]
    logits = language_model.score(state, list(range(9)), ends, [2] * 9)
    assert len(num_passes) == 1
    for row in (0, 1, 8):
        assert largest(logits[row] - fresh_logits(model, text + ends[row])[-2:]) <= 1e-9


@pytest.mark.parametrize(("kind", "strategy"), [("llama", "crop"), ("llama", "snapshot")])
def test_copies_are_independent(kind: str, strategy: str) -> None:
    model = ALL[kind].build()
    language_model = wrapped(model, strategy)
    state = language_model.start(3)
    text = list(range(2, 22))
    language_model.score(state, [0], [text], [1])
    language_model.commit(state, [0], [20])
    language_model.score(state, [0], [[50, 51, 52]], [3])  # not committed: not copied
    assert language_model.copy_prefix(state, 0, 2, 15) == 15
    for row, tokens in ((2, [9] * 12), (0, [50, 51, 52, 8])):
        language_model.score(state, [row], [tokens], [1])
        language_model.commit(state, [row], [len(tokens)])
    language_model.release(state, 1)
    texts = {0: [*text, 50, 51, 52, 8], 2: [*text[:15], *[9] * 12]}
    for row, known in texts.items():
        assert state.lengths[row] == len(known)
        logits = language_model.score(state, [row], [[4]], [1])
        assert largest(logits[0, 0] - fresh_logits(model, [*known, 4])[-1]) <= 1e-9
    language_model.release(state, 0)
    language_model.score(state, [0], [[VOCAB_SIZE - 1] * 30], [1])
    logits = language_model.score(state, [2], [[4, 5]], [1])
    assert largest(logits[0, 0] - fresh_logits(model, [*texts[2], 4, 5])[-1]) <= 1e-9


@pytest.mark.parametrize("strategy", ["crop", "snapshot"])
def test_scores_that_were_not_committed_are_forgotten(strategy: str) -> None:
    """The same tokens in other places must be computed again."""
    model = ALL["llama"].build()
    language_model = wrapped(model, strategy)
    state = language_model.start(2)
    language_model.score(state, [0], [[3, *[7] * 9]], [1])
    language_model.commit(state, [0], [10])
    language_model.score(state, [0, 1], [[7, 7, 7], [7, 7, 7]], [1, 1])
    assert language_model.copy_prefix(state, 0, 1, 6) == 6
    assert language_model.truncate(state, 0, 4) == 4
    logits = language_model.score(state, [0, 1], [[7, 7, 8], [7, 7, 8]], [1, 1])
    for row, length in enumerate((4, 6)):
        expected = fresh_logits(model, [3, *[7] * (length + 1), 8])[-1]
        assert largest(logits[row, 0] - expected) <= 1e-9


def test_recurrent_states_are_taken_whole_or_not_at_all() -> None:
    model = ALL["mamba2"].build()
    language_model = wrapped(model)
    state = language_model.start(3)
    language_model.score(state, [0], [[5, 6, 7, 8]], [1])
    language_model.commit(state, [0], [4])
    assert language_model.copy_prefix(state, 0, 1, 3) == 0
    assert language_model.copy_prefix(state, 0, 1, 9) == 4
    assert language_model.truncate(state, 1, 4) == 4
    assert language_model.truncate(state, 1, 3) == 0
    logits = language_model.score(state, [0, 1], [[9], [9]], [1, 1])
    expected = fresh_logits(model, [5, 6, 7, 8, 9])[-1], fresh_logits(model, [9])[-1]
    assert max(largest(logits[row, 0] - expected[row]) for row in (0, 1)) <= 1e-4


def test_states_computed_unwatched_are_not_made_up() -> None:
    """Fewer states than tokens tell a drafter that it has missed some."""
    language_model = wrapped(ALL["llama"].build())
    state = language_model.start(3)
    language_model.score(state, [0], [[5, 6, 7]], [1])
    language_model.commit(state, [0], [3])
    language_model.watch(state, [1])
    language_model.score(state, [0], [[8, 9]], [1])
    language_model.commit(state, [0], [2])
    assert language_model.copy_prefix(state, 0, 1, 4) == 4
    assert language_model.watched(state, 1) is None
    language_model.score(state, [1], [[3]], [1])
    language_model.commit(state, [1], [1])
    assert len(language_model.watched(state, 1)) == 1 < state.lengths[1]
    language_model.release(state, 0)
    language_model.score(state, [0], [[5, 6]], [1])
    language_model.commit(state, [0], [2])
    assert language_model.copy_prefix(state, 0, 2, 1) == 1
    language_model.score(state, [2], [[3]], [1])
    language_model.commit(state, [2], [1])
    assert len(language_model.watched(state, 2)) == 2 == state.lengths[2]
