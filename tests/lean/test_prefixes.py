"""Lean rows that grow, are cut short and begin as copies say the same bits as fresh rows."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from random_rows import RandomRows, Scratch
from tiny_models import Architecture, random_tokens

pytest.importorskip("numba")

from forerun.lean.attention import PAGE
from forerun.lean.crew import Crew
from forerun.lean.model import LeanModel
from forerun.lean.pages import ANGLES
from forerun.lean.shape import LANES
from forerun.models.base import Prefixes

LAYERS = (2, 0)


def lean(kind: str = "llama", **options: Any) -> LeanModel:
    return LeanModel(Architecture(kind, "", options, dtype=torch.float32).build(), num_threads=1)


def from_scratch(model: LeanModel, text: list[int]) -> Scratch:
    state = model.start(1)
    model.watch(state, LAYERS)
    logits = model.score(state, [0], [text], [len(text)])[0]
    model.commit(state, [0], [len(text)])
    return Scratch(logits, model.watched(state, 0))


@pytest.mark.parametrize(
    ("kind", "num_operations"),
    [("llama", 300), ("qwen3", 100), pytest.param("llama", 1000, marks=pytest.mark.slow)],
)
def test_random_operations(kind: str, num_operations: int) -> None:
    model = lean(kind)
    played = RandomRows(
        model,
        lambda text: from_scratch(model, text),
        num_rows=6,
        seed=1,
        has_trees=True,
        layers=LAYERS,
    ).play(num_operations)
    assert played.worst == 0
    assert played.num_copied > num_operations
    assert played.num_cut > num_operations / 40


def test_growth_changes_no_bit() -> None:
    """Token by token from nothing, against rows that had room from the start."""
    model = lean(max_position_embeddings=1024)
    generator = random.Random(2)
    text, other = random_tokens(generator, 600), random_tokens(generator, 40)
    small, large = model.start(8, 1), model.start(8, 2048)
    model.score(large, [7], [random_tokens(generator, 1000)], [1])
    model.release(large, 7)
    sizes = set()
    begin = 0
    while begin < len(text):
        feed = text[begin : begin + generator.choice((1, 3, 60))]
        feeds, rows = [feed], [5]
        if begin < len(other):
            feeds, rows = [other[begin : begin + len(feed)], feed], [2, 5]
        counts = [len(part) for part in feeds]
        both = [model.score(state, rows, feeds, counts) for state in (small, large)]
        for index, count in enumerate(counts):
            assert torch.equal(both[0][index, :count], both[1][index, :count])
        for state in (small, large):
            model.commit(state, rows, counts)
        begin += len(feed)
        sizes.add(small._pages.num_used)
    assert len(sizes) > 3
    parents = [-1, -1, 0, 0, 1] * 8  # a tree needs slots past the text
    parents = [
        parent + node - node % 5 if parent >= 0 else -1 for node, parent in enumerate(parents)
    ]
    feed = [text[0], *random_tokens(generator, 40)]
    both = [model.score(state, [5], [feed], [41], [parents]) for state in (small, large)]
    assert torch.equal(*both)


@pytest.mark.parametrize("step", [LANES, 3 * LANES, ANGLES])
def test_angles_do_not_depend_on_how_many_there_are(step: int) -> None:
    model = lean(max_position_embeddings=2 * ANGLES)
    angles = model._rotary.angles
    parts = [angles(begin, begin + step) for begin in range(0, 2 * ANGLES, step)]
    for few, many in zip(zip(*parts, strict=True), angles(0, 2 * ANGLES), strict=True):
        np.testing.assert_array_equal(np.concatenate(few, 1)[:, : 2 * ANGLES], many)


def test_storage_comes_with_rows_and_tokens() -> None:
    model = lean()
    state = model.start(10_000)
    assert isinstance(model, Prefixes)

    def sizes() -> tuple[int, int, int]:
        return state._pages.num_used, *state._pages.cache.pages.shape

    assert sizes() == (0, 1, 1)
    model.score(state, [4, 2], [[1], [2]], [1, 1])
    model.commit(state, [4, 2], [1, 1])
    assert sizes() == (2, 5, 1)
    assert model.copy_prefix(state, 4, 5, 1) == 1
    assert sizes() == (2, 10, 1)
    model.score(state, [5], [[1] * PAGE], [1])
    assert sizes() == (4, 10, 2)


def test_growth_keeps_what_was_scored_and_not_committed() -> None:
    """Another row makes the table of pages grow between two scores of a draft that grows."""
    model = lean()
    state = model.start(4)
    text = random_tokens(random.Random(3), 10)
    model.score(state, [0], [text], [1])
    model.score(state, [3], [random_tokens(random.Random(4), 100)], [1])
    logits = model.score(state, [0], [[*text, 5]], [1])
    assert torch.equal(logits[0, 0], from_scratch(model, [*text, 5]).logits[-1])


def test_scores_that_were_not_committed_are_forgotten() -> None:
    """The same tokens in other places must be computed again."""
    model = lean()
    state = model.start(2)
    model.score(state, [0], [[3, *[7] * 9]], [1])
    model.commit(state, [0], [10])
    model.score(state, [0, 1], [[7, 7, 7], [7, 7, 7]], [1, 1])
    assert model.copy_prefix(state, 0, 1, 6) == 6
    assert model.truncate(state, 0, 4) == 4
    logits = model.score(state, [0, 1], [[7, 7, 8], [7, 7, 8]], [1, 1])
    for row, length in enumerate((4, 6)):
        expected = from_scratch(model, [3, *[7] * (length + 1), 8]).logits[-1]
        assert torch.equal(logits[row, 0], expected)


def test_the_first_layers_grow_the_rows_of_the_model() -> None:
    model = lean()
    state = model.start(4)
    text = random_tokens(random.Random(5), 14)
    model.score(state, [0], [text], [1])
    model.commit(state, [0], [14])
    shallow = model.first_layers(state, 1)
    rows = shallow.start(4)
    expected = shallow.score(rows, [0], [[3, 4]], [1])
    assert model.copy_prefix(state, 0, 3, 14) == 14
    assert torch.equal(shallow.score(rows, [3], [[3, 4]], [1]), expected)
    shallow.score(rows, [3], [list(range(40))], [1])
    logits = model.score(state, [3, 0], [[3, 4], [3, 4]], [1, 1])
    assert torch.equal(logits[0], logits[1])
    assert torch.equal(logits[0, 0], from_scratch(model, [*text, 3, 4]).logits[-1])


def test_a_long_prefix_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight copies of a thousand tokens: no pass, and every row goes on with the same bits."""
    model = lean(max_position_embeddings=1100)
    state = model.start(9)
    text = random_tokens(random.Random(6), 1000)
    model.score(state, [0], [text], [1])
    model.commit(state, [0], [1000])
    num_passes: list[int] = []
    run = Crew.run
    monkeypatch.setattr(Crew, "run", lambda *args: (num_passes.append(1), run(*args))[1])
    for row in range(1, 9):
        assert model.copy_prefix(state, 0, row, 1000) == 1000
    assert not num_passes
    logits = model.score(state, list(range(9)), [[7, 8]] * 9, [2] * 9)
    assert len(num_passes) == 1
    assert all(torch.equal(logits[0], logits[row]) for row in range(9))
    assert torch.equal(logits[8], from_scratch(model, [*text, 7, 8]).logits[-2:])
