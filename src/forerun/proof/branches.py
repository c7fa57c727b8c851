"""Follows every outcome of code that asks for randomness, by running it again and again.

Each run gives the answers along one path of the tree of outcomes and multiplies their
probabilities; the next run changes the last answer that has an untried alternative. The code itself
is not modified, so the enumeration covers exactly what runs in production.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from forerun.base.arrays import Array
from forerun.noise.addresses import Address, Addressing, Purpose, by_round

Result = TypeVar("Result")


class CannotEnumerate(Exception):
    """The code used randomness in a way whose outcomes cannot be listed."""


@dataclass
class Path:
    """One path through the tree of outcomes: the answers to give, and the number of options of each
    question."""

    script: list[int] = field(default_factory=list)
    options: list[int] = field(default_factory=list)

    def ask(self, num_options: int) -> int:
        """Return the answer to the next question. After the end of the script, that is always the
        question's first option."""
        index = len(self.options)
        if index == len(self.script):
            self.script.append(0)
        if self.script[index] >= num_options:
            raise CannotEnumerate("randomness other than its rng")
        self.options.append(num_options)
        return self.script[index]

    def following(self) -> Path | None:
        """The next path, or None if all paths were followed."""
        script = self.script[: len(self.options)]
        while script and script[-1] + 1 == self.options[len(script) - 1]:
            script.pop()
        return Path([*script[:-1], script[-1] + 1]) if script else None


def every_path(run: Callable[[Path], Result]) -> Iterator[Result]:
    """Yield the result of `run` on every path, depth first."""
    path: Path | None = Path()
    while path is not None:
        yield run(path)
        path = path.following()


Span = tuple[float, float]
"""The interval low <= u < high in which a uniform random number u is known to lie."""
WHOLE: Span = (0.0, 1.0)
"""The interval of a random number about which nothing is known."""
Memory = tuple[tuple[Address, Span], ...]
"""The known intervals of random numbers that a later round may use again, sorted by address."""


def edges(weights: Array) -> Array:
    """The cumulative shares (R, V + 1) of weights (R, V): a uniform number between two of them
    chooses that token."""
    running = np.cumsum(weights, axis=1)
    shares = running / running[:, -1:]
    return np.concatenate([np.zeros((len(shares), 1)), shares], axis=1)


def _share(chance: Array, low: Array, high: Array) -> tuple[Array, Array]:
    """The fraction of the interval from low to high that lies below `chance`, and where that
    fraction ends, both (B,). Empty intervals belong to rows whose path has ended."""
    cut = np.clip(chance, low, high)
    width = high - low
    return (cut - low) / np.where(width > 0, width, 1.0), cut


class BranchingNoise:
    """Noise that gives a rule one scripted outcome per question, the same for all rows.

    Rows are independent, so sharing answers loses nothing: weights (B,) holds each row's
    probability of this path. A row that a question does not concern counts only in the first
    option. Options that no row can take are skipped.

    Every question has the address that production would look up. If an address is asked again, it
    stands for the same number: the interval in which that number is known to lie is split, with
    conditional probabilities. Such addresses are collected in `reused`, as are addresses before the
    round's start, which an earlier round may have used. If the races of a position are repeated,
    this is recorded too, but they are treated as independent.
    """

    def __init__(
        self,
        path: Path,
        num_rows: int,
        first: int = 0,
        addressing: Addressing = by_round,
        memory: Memory = (),
    ) -> None:
        """Begin a path.

        first: the position at which the round starts.
        memory: what earlier rounds have shown about random numbers.
        """
        self.path = path
        self.weights = np.ones(num_rows)
        self.first = first
        self.addressing = addressing
        self.reused: set[Address] = set()
        self._fresh = np.zeros(num_rows), np.ones(num_rows)
        self._spans: dict[Address, tuple[Array, Array]] = {  # low and high, (B,) each
            address: (np.full(num_rows, low), np.full(num_rows, high))
            for address, (low, high) in memory
        }

    def coins(self, slots: list[int], chances: Array) -> Array:
        """The outcomes of coins for all rows, one coin after another, (B, slots)."""
        heads = np.zeros(len(slots), dtype=bool)
        for column, (slot, chance) in enumerate(zip(slots, chances.T, strict=True)):
            address = self._address(Purpose.ACCEPT, slot)
            low, high = self._meet(address, (chance > 0) & (chance < 1))
            share, cut = _share(chance, low, high)
            open_ = share[self.weights > 0]  # the others are on paths that have ended already
            if (open_ >= 1).all() or (open_ <= 0).all():
                heads[column] = open_.size > 0 and open_[0] >= 1
            else:
                heads[column] = self.path.ask(2) == 1
            self.weights *= share if heads[column] else 1 - share
            self._spans[address] = (low, cut) if heads[column] else (cut, high)
        return np.broadcast_to(heads, chances.shape)

    def draw(self, weights: Array) -> Array:
        """A token for each row, drawn by one random number, (B,)."""
        weights, everyone = np.asarray(weights), np.arange(len(self.weights))
        address = self._address(Purpose.RESIDUAL, 0)
        is_fresh = address not in self._spans
        low, high = self._meet(address, np.count_nonzero(weights, axis=1) > 1)
        bounds = edges(weights)
        if not is_fresh:
            weights = np.diff(np.clip(bounds, low[:, None], high[:, None]), axis=1)
            weights[high <= low] = 1.0  # on a path that has ended
        tokens = self._choose(weights, everyone)
        start, end = bounds[everyone, tokens], bounds[everyone, tokens + 1]
        self._spans[address] = np.maximum(start, low), np.minimum(end, high)
        return tokens

    def race(self, weights: Array, rows: Array, slots: Array) -> Array:
        """The winners of races, (R,), with the noise of the slots' positions."""
        uncertain = np.count_nonzero(weights, axis=1) > 1
        for slot in set(slots.tolist()):
            racing = np.zeros(len(self.weights), dtype=bool)
            racing[rows] = uncertain & (slots == slot)
            address = Address(Purpose.TARGET, self.first + slot, 0)
            low, high = self._meet(address, racing)
            self._spans[address] = low, high * ~racing  # no span says what is known
        return self._choose(weights, rows)

    @property
    def last(self) -> int:
        """The last position of any random number that was used."""
        return max((address.position for address in self._spans), default=-1)

    def remembered(self, row: int, first: int) -> Memory:
        """The facts known in a row about random numbers that a round starting at `first` may
        use."""
        known = (
            (address, (float(low[row]), float(high[row])))
            for address, (low, high) in self._spans.items()
            if address.position >= first
        )
        return tuple(sorted(item for item in known if item[1] != WHOLE))

    def _address(self, purpose: Purpose, slot: int) -> Address:
        """The address at which production would look this number up."""
        return Address(purpose, *self.addressing(purpose, self.first, slot))

    def _meet(self, address: Address, uncertain: Array) -> tuple[Array, Array]:
        """Return the interval (low, high) in which a number is known to lie, for each row. If the
        number was used before and matters in some row (`uncertain`, (B,)), its address is added to
        `reused`."""
        fresh = self._fresh
        low, high = self._spans.get(address, fresh)
        if low is fresh[0] and high is fresh[1] and address.position >= self.first:
            return fresh
        known = (low > 0) | (high < 1) | (address.position < self.first)
        if (known & uncertain & (self.weights > 0)).any():
            self.reused.add(address)
        return low, high

    def _choose(self, weights: Array, rows: Array) -> Array:
        """Choose one of the tokens that some row can take, and multiply the rows' weights by its
        probability."""
        possible = (weights > 0)[self.weights[rows] > 0].any(axis=0)
        tokens = np.flatnonzero(possible) if possible.any() else [0]
        option = self.path.ask(len(tokens))
        factor = np.full(len(self.weights), 1.0 if option == 0 else 0.0)
        factor[rows] = weights[:, tokens[option]] / weights.sum(axis=1)
        self.weights *= factor
        return np.full(len(rows), tokens[option], dtype=np.int64)
