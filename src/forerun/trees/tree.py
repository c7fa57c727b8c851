"""The shape of a draft: a tree that says which guess follows which.

Nodes are numbered so that a parent comes before its children; -1 stands for the text itself.  A
chain is the tree in which node i follows node i - 1, so code for trees also works for chains.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from operator import index

import numpy as np
from numpy.typing import NDArray

from forerun.base.errors import InputError, explain

ROOT = -1


@dataclass(frozen=True)
class Tree:
    """N nodes, each with its parent: an earlier node, or -1 for the end of the text."""

    parents: tuple[int, ...]

    def __post_init__(self) -> None:
        try:
            parents = tuple(index(parent) for parent in self.parents)
        except TypeError:  # a text, a single number, fractions
            wrong = "A tree is made of the parents of its nodes, whole numbers."
            cure = "For example Tree((-1, 0, 0)), or Tree.chain(3)."
            raise InputError(explain(wrong, repr(self.parents), cure)) from None
        object.__setattr__(self, "parents", parents)
        for node, parent in enumerate(self.parents):
            if not ROOT <= parent < node:
                wrong = f"The parent of node {node} is not an earlier node."
                cure = f"Use -1 for the end of the text, or a node before {node}."
                raise InputError(explain(wrong, parent, cure))

    @classmethod
    def chain(cls, length: int) -> Tree:
        """The chain of `length` nodes."""
        try:
            return _chain(cls, index(length))  # type: ignore[arg-type]  # a class has a hash
        except (TypeError, OverflowError, MemoryError):
            wrong = "A chain has a whole number of nodes."
            raise InputError(explain(wrong, repr(length), "For example Tree.chain(3).")) from None

    @classmethod
    def of_branching(cls, branching: Sequence[int]) -> Tree:
        """The tree in which every node at depth d has branching[d] children, numbered level by
        level; (2, 2) gives 6 nodes."""
        try:
            widths = [index(width) for width in branching]
        except TypeError:  # a text, say, or a single number
            widths = [0]
        if min(widths, default=1) < 1:
            wrong = "A branching tells how many children the nodes of each level have."
            cure = "Pass whole numbers from 1 on: Tree.of_branching((2, 2))."
            raise InputError(explain(wrong, repr(branching), cure))
        parents: list[int] = []
        level = [ROOT]
        for width in widths:
            first = len(parents)
            parents += [parent for parent in level for _ in range(width)]
            level = list(range(first, len(parents)))
        return cls(tuple(parents))

    def first(self, count: int) -> Tree:
        """The tree of the first `count` nodes; parents come before children, so it is a tree."""
        return Tree(self.parents[:count])

    def only(self, nodes: Sequence[int]) -> Tree:
        """The tree of some of the nodes, given in ascending order. The parent of each must be among
        them."""
        place = {ROOT: ROOT} | {node: index for index, node in enumerate(nodes)}
        lost = [node for node in nodes if self.parents[node] not in place]
        if lost or list(nodes) != sorted(place)[1:]:
            wrong = "Nodes to keep must be in ascending order and have their parents among them."
            raise InputError(explain(wrong, list(nodes), f"Keep the parents of {lost} too."))
        return Tree(tuple(place[self.parents[node]] for node in nodes))

    def __len__(self) -> int:
        return len(self.parents)

    @property
    def is_chain(self) -> bool:
        """Whether every node follows the node before it."""
        return self.parents == tuple(range(-1, len(self) - 1))

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """The number of guesses before each node on its path; 0 for nodes that follow the text."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(0 if parent == ROOT else depths[parent] + 1)
        return tuple(depths)

    @property
    def height(self) -> int:
        """The number of nodes on the longest path."""
        return max(self.depths, default=-1) + 1

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """The children of each node, in order. The last entry holds the children of the text, so
        that `children[-1]` works."""
        children: list[list[int]] = [[] for _ in range(len(self) + 1)]
        for node, parent in enumerate(self.parents):
            children[parent].append(node)
        return tuple(map(tuple, children))

    @cached_property
    def ancestors(self) -> NDArray[np.bool_]:
        """Which nodes each node may attend to, (N, N): entry (i, j) is true if j is i or an
        ancestor of i."""
        is_ancestor = np.eye(len(self), dtype=bool)
        for node, parent in enumerate(self.parents):
            if parent != ROOT:
                is_ancestor[node] |= is_ancestor[parent]
        return is_ancestor

    def path(self, node: int) -> tuple[int, ...]:
        """The nodes on the path from the text to a node, itself included."""
        nodes: list[int] = []
        while node != ROOT:
            nodes.append(node)
            node = self.parents[node]
        return tuple(reversed(nodes))

    @cached_property
    def children_first(self) -> tuple[int, ...]:
        """All nodes, children before their parent and siblings in order; the text itself (-1) comes
        last."""
        order: list[int] = []
        stack = [ROOT]
        while stack:  # the text, then last children first: the result in reverse
            order.append(stack.pop())
            stack += self.children[order[-1]]
        return tuple(reversed(order))

    @property
    def leaves(self) -> tuple[int, ...]:
        """The nodes without children."""
        return tuple(node for node in range(len(self)) if not self.children[node])


@cache
def _chain(kind: type[Tree], length: int) -> Tree:
    return kind(tuple(range(-1, length - 1)))
