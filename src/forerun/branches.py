"""Follow every outcome of code that asks for randomness, by running it again and again.

Each run answers the questions along one path of the tree of outcomes and multiplies the chances
of its answers; the next run differs in the last answer that has an alternative.  The code itself
is not touched, so what is enumerated is what ships.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from forerun.arrays import Array

Result = TypeVar("Result")


class CannotEnumerate(Exception):
    """The code used randomness in a way whose outcomes cannot be listed."""


@dataclass
class Path:
    """One path through the tree: the answers to give, and how many options each question had."""

    script: list[int] = field(default_factory=list)
    options: list[int] = field(default_factory=list)

    def ask(self, num_options: int) -> int:
        """The answer to the next question; past the end of the script, the first option."""
        index = len(self.options)
        if index == len(self.script):
            self.script.append(0)
        if self.script[index] >= num_options:
            raise CannotEnumerate("randomness other than its rng")
        self.options.append(num_options)
        return self.script[index]

    def following(self) -> Path | None:
        """The next path, or None when all are done."""
        script = self.script[: len(self.options)]
        while script and script[-1] + 1 == self.options[len(script) - 1]:
            script.pop()
        return Path([*script[:-1], script[-1] + 1]) if script else None


def every_path(run: Callable[[Path], Result]) -> Iterator[Result]:
    """The result of `run` on every path, depth first."""
    path: Path | None = Path()
    while path is not None:
        yield run(path)
        path = path.following()


class BranchingNoise:
    """Noise for a rule that takes one outcome per question for all rows at once.

    Rows are independent, so sharing the answers loses nothing: weights (B,) holds each row's
    chance of this path.  A row that a question does not concern counts only in the first option.
    Options that no row can take are not followed.
    """

    def __init__(self, path: Path, num_rows: int) -> None:
        self.path = path
        self.weights = np.ones(num_rows)

    def coins(self, slots: list[int], chances: Array) -> Array:
        heads = np.zeros(len(slots), dtype=bool)
        for column, chance in enumerate(chances.T):
            open_ = chance[self.weights > 0]  # the others are on paths that have ended already
            if (open_ >= 1).all() or (open_ <= 0).all():
                heads[column] = open_.size > 0 and open_[0] >= 1
            else:
                heads[column] = self.path.ask(2) == 1
            self.weights *= chance if heads[column] else 1 - chance
        return np.broadcast_to(heads, chances.shape)

    def draw(self, weights: Array) -> Array:
        return self._choose(np.asarray(weights), np.arange(len(self.weights)))

    def race(self, weights: Array, rows: Array, slots: Array) -> Array:
        return self._choose(weights, rows)

    def _choose(self, weights: Array, rows: Array) -> Array:
        possible = (weights > 0)[self.weights[rows] > 0].any(axis=0)
        tokens = np.flatnonzero(possible) if possible.any() else [0]
        option = self.path.ask(len(tokens))
        factor = np.full(len(self.weights), 1.0 if option == 0 else 0.0)
        factor[rows] = weights[:, tokens[option]] / weights.sum(axis=1)
        self.weights *= factor
        return np.full(len(rows), tokens[option], dtype=np.int64)
