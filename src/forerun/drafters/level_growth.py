"""Grows a draft level by level: each pass of a model gives the children of the last level.

If the turn has a shape (or wants a chain), its places are filled in order. Otherwise a node's
chance of being accepted is the product of the shares along its path; the best nodes of each level
are extended, and in the end the best of all nodes are kept. A share is at most 1, so a parent is
never worth less than its child, and the kept nodes form a tree.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from forerun.base.arrays import HostArray
from forerun.drafters.base import Guess, Turn
from forerun.drafters.texts import Text
from forerun.rules.types import Drawn
from forerun.trees.tree import ROOT, Tree

MOST_CHILDREN = 8
"""The most children of a node in a tree without a given shape."""


class Growth:
    """The draft of one turn, while it grows.

    text: the text that the draft continues.
    depth: the largest number of levels.
    width: how many nodes of a level may be extended; None: the square root of the budget.
    """

    def __init__(self, turn: Turn, text: Text, depth: int, width: int | None = None) -> None:
        self.turn = turn
        self.text = text
        self.depth = depth
        self.is_chain = turn.is_chain
        self.shape = Tree.chain(depth) if turn.is_chain else turn.shape
        self.width = max(1, round(turn.budget**0.5)) if width is None else width
        self.level = 0
        self.frontier: list[int] = [ROOT] if depth > 0 and turn.budget > 0 else []
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.places: list[int] = []  # index of each node in the shape
        self.values: list[float] = []
        self.laws: list[HostArray] = []
        self._num_pending = 0
        self._fed: list[int] = []  # nodes in the order the model was fed them
        self._kept_order: list[int] = []  # nodes in the order of the guess

    def path(self, node: int) -> list[int]:
        """The tokens from the text to a node."""
        tokens: list[int] = []
        while node != ROOT:
            tokens.append(self.tokens[node])
            node = self.parents[node]
        return tokens[::-1]

    def places_after(self, node: int) -> Sequence[int]:
        """The places in the shape for a node's children; without a shape, simply 0, 1, ... up to a
        limit."""
        if self.shape is None:
            return range(min(self.turn.budget, MOST_CHILDREN))
        return self.shape.children[ROOT if node == ROOT else self.places[node]]

    def add(
        self, parent: int, token: int, place: int, share: float, law: HostArray | None = None
    ) -> None:
        """Add a node. share: the chance that it is accepted if its parent is."""
        before = 1.0 if parent == ROOT else self.values[parent]
        if law is None and before * share < self.turn.worth:
            return  # dropping a guess by its token is lossless under shared noise
        self.tokens.append(token)
        self.parents.append(parent)
        self.places.append(place)
        self.values.append(before * share)
        if law is not None:
            self.laws.append(law)

    def next_level(self) -> None:
        """Move to the next level: choose which of the newest nodes to extend."""
        last = set(self.frontier)
        new = [node for node, parent in enumerate(self.parents) if parent in last]
        self.level += 1
        if self.level >= self.depth:
            self.frontier = []
        elif self.is_chain and not self.laws and new and self.values[new[-1]] < self._least():
            self.frontier = []  # the next level is not worth a pass of this model
        elif self.shape is None:
            self.frontier = sorted(self._best(new, self.width))
            worst = sorted(self.values, reverse=True)[: self.turn.budget][-1:]
            full = len(self.values) >= self.turn.budget
            if full and all(self.values[node] < worst[0] for node in self.frontier):
                self.frontier = []  # their children cannot be among the best
        else:
            grows = [node for node in new if self.places_after(node)]
            self.frontier = grows[:1] if self.width == 1 else grows

    def _least(self) -> float:
        """The chance that the chain's last guess must have for another guess to be worth
        drafting."""
        least = self.turn.goes_on
        return least[self.level - 1] if self.level <= len(least) else 0.0

    def feed(self, num_pending: int) -> tuple[list[int], list[int] | None]:
        """The tokens to feed the model, the nodes to extend last, and their parents
        (None for a chain)."""
        self._num_pending = num_pending
        if self.frontier != [ROOT]:
            self._fed += self.frontier
        number = {ROOT: ROOT} | {node: index for index, node in enumerate(self._fed)}
        parents = [number[self.parents[node]] for node in self._fed]
        is_line = parents == list(range(-1, len(parents) - 1))
        return [self.tokens[node] for node in self._fed], None if is_line else parents

    def guess(self, drawn: Drawn) -> Guess:
        """The finished draft as a `Guess`."""
        if self.shape is None:
            order = sorted(self._best(range(len(self.tokens)), self.turn.budget))
        else:
            order = sorted(range(len(self.tokens)), key=self.places.__getitem__)
        self._kept_order = order
        if not order:
            return Guess()
        number = {ROOT: ROOT} | {node: index for index, node in enumerate(order)}
        return Guess(
            [self.tokens[node] for node in order],
            drawn,
            np.stack([self.laws[node] for node in order]) if self.laws else None,
            None if self.is_chain else [number[self.parents[node]] for node in order],
            [self.values[node] for node in order] if drawn is Drawn.SHARED else None,
        )

    def kept(self, path: Sequence[int]) -> int | list[int]:
        """The fed tokens that the model keeps after `path` was accepted: their number if they come
        first, else a list of their indices."""
        fed = {node: index for index, node in enumerate(self._fed)}
        nodes = [self._kept_order[node] for node in path]
        kept = [self._num_pending + fed[node] for node in nodes if node in fed]
        whole = self._num_pending + len(kept)
        indices = [*range(self._num_pending), *kept]
        return whole if indices == list(range(whole)) else indices

    def _best(self, nodes: Sequence[int], count: int) -> list[int]:
        return sorted(nodes, key=lambda node: -self.values[node])[:count]
