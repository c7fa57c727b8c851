"""Random operations on the rows of any model, each compared with the text from scratch."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from tiny_models import random_tree

from forerun.trees.tree import Tree

MOST_TOKENS = 90  # in a text, so that tiny models of 128 positions have room for drafts
OPERATIONS = ("round", "round", "round", "score", "release", "copy", "copy", "truncate")


@dataclass
class Scratch:
    """What a text says without any rows: logits (N, V), and the states (N, F) if watched."""

    logits: Any
    states: Any = None


@dataclass
class RandomRows:
    """Requests that come, go, share beginnings and go back, on `num_rows` rows."""

    model: Any
    from_scratch: Callable[[list[int]], Scratch]
    num_rows: int
    seed: int
    has_trees: bool = False
    layers: tuple[int, ...] = ()  # to watch
    worst: float = 0.0
    num_copied: int = 0  # tokens that were taken over
    num_cut: int = 0  # rows that were truncated and still stored something
    texts: list[list[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.generator = random.Random(self.seed)
        self.state = self.model.start(self.num_rows)
        self.texts = [self._tokens(1, 20) for _ in range(self.num_rows)]
        self.is_new = [False] * self.num_rows  # to whoever watches
        if self.layers:
            self.model.watch(self.state, self.layers)

    def play(self, num_operations: int) -> RandomRows:
        for _ in range(num_operations):
            getattr(self, self.generator.choice(OPERATIONS))()
        return self

    def round(self) -> None:
        """Score chains and trees of some rows, and commit a path of each."""
        rows, drafts, trees, logits = self.score()
        pending = [len(self.texts[row]) - self.state.lengths[row] for row in rows]
        kept: list[int | list[int]] = []
        scratches = []
        for index, (row, draft, tree) in enumerate(zip(rows, drafts, trees, strict=True)):
            shape = tree or Tree.chain(len(draft))
            path = shape.path(self.generator.randint(-1, len(draft) - 1))
            text = self.texts[row] + [draft[node] for node in path]
            scratches.append(self.from_scratch(text))
            expected = scratches[-1].logits[len(self.texts[row]) - 1 :]
            self._compare(logits[index, [0, *(node + 1 for node in path)]], expected)
            is_path = tree is not None
            count = pending[index]
            kept.append(
                [*range(count), *(count + n for n in path)] if is_path else count + len(path)
            )
            self.texts[row] = text
        before = list(self.state.lengths)
        self.model.commit(self.state, rows, kept)
        for row, scratch in zip(rows, scratches, strict=True):
            assert self.state.lengths[row] <= len(self.texts[row])
            if self.layers:
                assert self.state.lengths[row] == len(self.texts[row])
                first = 0 if self.is_new[row] else before[row]
                self._compare(self.model.watched(self.state, row), scratch.states[first:])
                self.is_new[row] = False
            self.texts[row] += self._tokens(1, 1)
            if len(self.texts[row]) > MOST_TOKENS:
                self._enter(row)

    def score(self) -> tuple[list[int], list[list[int]], list[Tree | None], Any]:
        """Score some rows; without a commit, nothing has happened."""
        size = self.generator.randint(1, self.num_rows)
        rows = self.generator.sample(range(self.num_rows), size)
        drafts = [self._tokens(0, 6) for _ in rows]
        trees: list[Tree | None] = [None] * size
        if self.has_trees and self.generator.random() < 0.5:
            trees = [random_tree(self.generator, len(draft)) for draft in drafts]
        feeds = [
            self.texts[row][self.state.lengths[row] :] + draft
            for row, draft in zip(rows, drafts, strict=True)
        ]
        parents = [None if tree is None else tree.parents for tree in trees]
        shapes = () if parents == [None] * size else (parents,)
        counts = [len(draft) + 1 for draft in drafts]
        return rows, drafts, trees, self.model.score(self.state, rows, feeds, counts, *shapes)

    def release(self) -> None:
        self._enter(self.generator.randrange(self.num_rows))

    def copy(self) -> None:
        source, row = self.generator.sample(range(self.num_rows), 2)
        self._enter(row)
        stored, text = self.state.lengths[source], self.texts[source]
        length = self.generator.choice((stored, self.generator.randint(0, len(text))))
        taken = self.model.copy_prefix(self.state, source, row, length)
        assert taken == self.state.lengths[row] <= min(length, stored)
        assert self.state.lengths[source] == stored
        self._go_on(row, text[:length])
        self.num_copied += taken

    def truncate(self) -> None:
        row = self.generator.randrange(self.num_rows)
        stored, text = self.state.lengths[row], self.texts[row]
        length = self.generator.choice((stored, self.generator.randint(0, len(text))))
        left = self.model.truncate(self.state, row, length)
        assert left == self.state.lengths[row] <= min(length, stored)
        self._go_on(row, text[:length])
        self.num_cut += 0 < left < stored

    def _enter(self, row: int) -> None:
        self.model.release(self.state, row)
        assert self.state.lengths[row] == 0
        self.texts[row], self.is_new[row] = self._tokens(1, 40), False

    def _go_on(self, row: int, beginning: list[int]) -> None:
        """A text that begins so and goes on in its own way."""
        self.texts[row], self.is_new[row] = beginning + self._tokens(1, 9), True

    def _tokens(self, least: int, most: int) -> list[int]:
        count = self.generator.randint(least, most)
        return [self.generator.randrange(self.model.vocab_size) for _ in range(count)]

    def _compare(self, ours: Any, expected: Any) -> None:
        ours, expected = np.asarray(torch.as_tensor(ours)), np.asarray(torch.as_tensor(expected))
        assert ours.shape == expected.shape
        if ours.size and not np.array_equal(ours, expected):  # minus infinity equals itself
            error = float(np.abs(ours - expected).max())
            self.worst = max(self.worst, error if error == error else float("inf"))
