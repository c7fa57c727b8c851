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

from forerun.addresses import Address, Addressing, Purpose, by_round
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


Span = tuple[float, float]
"""The numbers low <= u < high that a uniform is known to be one of."""
WHOLE: Span = (0.0, 1.0)
"""The span of a number of which nothing is known."""
Memory = tuple[tuple[Address, Span], ...]
"""What is known, in the order of addresses, of numbers that a later round may meet again."""


def edges(weights: Array) -> Array:
    """Where each token's share of the uniform begins and ends, (R, V + 1), for weights (R, V)."""
    running = np.cumsum(weights, axis=1)
    shares = running / running[:, -1:]
    return np.concatenate([np.zeros((len(shares), 1)), shares], axis=1)


class BranchingNoise:
    """Noise for a rule that takes one outcome per question for all rows at once.

    Rows are independent, so sharing the answers loses nothing: weights (B,) holds each row's
    chance of this path.  A row that a question does not concern counts only in the first option.
    Options that no row can take are not followed.

    Every question has the address that production would look up.  A number that is met again is
    the number it was: the span it is known to lie in is split, with conditional chances.  Its
    address goes into `reused`; so does one before the round, which may have been met there.  The
    races of a position that is raced again are noticed, but taken to be independent.
    """

    def __init__(
        self,
        path: Path,
        num_rows: int,
        first: int = 0,
        addressing: Addressing = by_round,
        memory: Memory = (),
    ) -> None:
        self.path = path
        self.weights = np.ones(num_rows)
        self.first = first
        self.addressing = addressing
        self.reused: set[Address] = set()
        self._spans: dict[Address, Array] = {  # (2, B) each
            address: self._everywhere(span) for address, span in memory
        }

    def coins(self, slots: list[int], chances: Array) -> Array:
        heads = np.zeros(len(slots), dtype=bool)
        for column, (slot, chance) in enumerate(zip(slots, chances.T, strict=True)):
            low, high = span = self._meet(Purpose.ACCEPT, slot, (chance > 0) & (chance < 1))
            cut = np.clip(chance, low, high)
            share = (cut - low) / (high - low)
            open_ = share[self.weights > 0]  # the others are on paths that have ended already
            if (open_ >= 1).all() or (open_ <= 0).all():
                heads[column] = open_.size > 0 and open_[0] >= 1
            else:
                heads[column] = self.path.ask(2) == 1
            self.weights *= share if heads[column] else 1 - share
            self._narrow(span, *((low, cut) if heads[column] else (cut, high)))
        return np.broadcast_to(heads, chances.shape)

    def draw(self, weights: Array) -> Array:
        weights = np.asarray(weights)
        low, high = span = self._meet(Purpose.RESIDUAL, 0, (weights > 0).sum(axis=1) > 1)
        bounds = edges(weights)
        if (low > 0).any() or (high < 1).any():
            weights = np.diff(np.clip(bounds, low[:, None], high[:, None]), axis=1)
        tokens = self._choose(weights, np.arange(len(self.weights)))
        start, end = (bounds[np.arange(len(tokens)), tokens + i] for i in (0, 1))
        self._narrow(span, np.maximum(start, low), np.minimum(end, high))
        return tokens

    def race(self, weights: Array, rows: Array, slots: Array) -> Array:
        for slot in np.unique(slots).tolist():
            racing = np.zeros(len(self.weights), dtype=bool)
            racing[rows[slots == slot]] = True
            racing[rows] &= (weights > 0).sum(axis=1) > 1
            address = Address(Purpose.TARGET, self.first + slot, 0)
            span = self._at(address, racing)
            span[:, racing] = 0.0  # used up: a race tells more than a span can say
        return self._choose(weights, rows)

    def remembered(self, row: int, first: int) -> Memory:
        """What a round that starts at position `first` knows of its numbers."""
        spans = {at: span for at, span in self._spans.items() if at.position >= first}
        known = {at: (float(span[0, row]), float(span[1, row])) for at, span in spans.items()}
        return tuple(sorted(item for item in known.items() if item[1] != WHOLE))

    def _meet(self, purpose: Purpose, slot: int, uncertain: Array) -> Array:
        """The spans (2, B) of a slot's number; uncertain (B,) says in which rows it matters."""
        return self._at(Address(purpose, *self.addressing(purpose, self.first, slot)), uncertain)

    def _at(self, address: Address, uncertain: Array) -> Array:
        if address not in self._spans:
            self._spans[address] = self._everywhere(WHOLE)
        span = self._spans[address]
        known = (span[0] > 0) | (span[1] < 1) | (address.position < self.first)
        if (known & uncertain & (self.weights > 0)).any():
            self.reused.add(address)
        return span

    def _everywhere(self, span: Span) -> Array:
        return np.repeat(np.array(span)[:, None], len(self.weights), axis=1)

    def _narrow(self, span: Array, low: Array, high: Array) -> None:
        """What is known after an answer, in the rows that can have given it."""
        possible = self.weights > 0
        span[0], span[1] = np.where(possible, low, span[0]), np.where(possible, high, span[1])

    def _choose(self, weights: Array, rows: Array) -> Array:
        possible = (weights > 0)[self.weights[rows] > 0].any(axis=0)
        tokens = np.flatnonzero(possible) if possible.any() else [0]
        option = self.path.ask(len(tokens))
        factor = np.full(len(self.weights), 1.0 if option == 0 else 0.0)
        factor[rows] = weights[:, tokens[option]] / weights.sum(axis=1)
        self.weights *= factor
        return np.full(len(rows), tokens[option], dtype=np.int64)
