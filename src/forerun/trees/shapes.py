"""Chooses the shape of a draft tree: the one whose nodes are likeliest to be accepted.

The value of a node is the chance that it is accepted, the product of the chances along its path.
The expected number of tokens of a round is 1 plus the sum of the values. A node never has a higher
value than its parent or than an earlier sibling, so the best tree of N nodes consists of the N best
nodes of the infinite tree, and a heap finds them in order (Chen et al., Sequoia, use dynamic
programming).

A *static* tree is chosen from chances by rank, measured beforehand; any rule may judge it. A
*dynamic* tree is chosen after looking at the drafted tokens, which only `match` and point drafts
allow.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from forerun.base.errors import InputError, explain
from forerun.trees.tree import ROOT, Tree

Profile = NDArray[np.float64]
"""The chance that a node's k-th child is accepted, (depths, ranks); deeper nodes have the last
row's chances."""


def best_tree(profile: ArrayLike, num_nodes: int, max_depth: int | None = None) -> Tree:
    """The tree of at most `num_nodes` nodes and `max_depth` levels with the most expected tokens.

    profile: chances of acceptance by rank (ranks,), or by depth and rank (depths, ranks).

    Nodes are in the order of their values, so the first n of them are the best tree of n nodes. The
    tree has fewer than `num_nodes` nodes if no other node could ever be accepted.
    """
    chances = _profile(profile)
    if num_nodes < 0 or (max_depth is not None and max_depth < 0):
        cure = "Use whole numbers from 0."
        raise InputError(explain("A tree cannot be that small.", (num_nodes, max_depth), cure))
    parents: list[int] = []
    heap: list[tuple[float, int, int, int, float]] = []

    def offer(parent: int, depth: int, rank: int, worth: float) -> None:
        """Put the rank-th child of a node with value `worth` on the heap. Among equal values,
        shallow nodes come first."""
        row = chances[min(depth, len(chances) - 1)]
        if rank < len(row) and row[rank] > 0 and (max_depth is None or depth < max_depth):
            heapq.heappush(heap, (-worth * float(row[rank]), depth, parent, rank, worth))

    offer(ROOT, 0, 0, 1.0)
    while heap and len(parents) < num_nodes:
        worth, depth, parent, rank, above = heapq.heappop(heap)
        parents.append(parent)
        offer(parent, depth, rank + 1, above)
        offer(len(parents) - 1, depth + 1, 0, -worth)
    return Tree(tuple(parents))


def expected_tokens(tree: Tree, profile: ArrayLike) -> float:
    """The expected number of tokens of a round with this tree, the extra one included."""
    chances = _profile(profile)
    worth: list[float] = []
    for node, parent in enumerate(tree.parents):
        row = chances[min(tree.depths[node], len(chances) - 1)]
        rank = tree.children[parent].index(node)
        chance = float(row[rank]) if rank < len(row) else 0.0
        worth.append(chance if parent == ROOT else chance * worth[parent])
    return 1.0 + sum(worth)


def measured_profile(
    rounds: Iterable[tuple[Tree, Sequence[int]]], *, by_depth: bool = False
) -> Profile:
    """Acceptance chances by rank, measured in past rounds.

    rounds: the tree of each round, and its accepted nodes in order.
    by_depth: measure each depth separately.

    A child counts as tried if its parent was reached; nodes below a refused one are not counted.
    """
    tried: dict[tuple[int, int], int] = {}
    accepted: dict[tuple[int, int], int] = {}
    for tree, path in rounds:
        for depth, node in enumerate((ROOT, *path)):
            for rank, child in enumerate(tree.children[node]):
                place = (depth if by_depth else 0, rank)
                tried[place] = tried.get(place, 0) + 1
                accepted[place] = accepted.get(place, 0) + (child in path)
    if not tried:
        cure = "Pass rounds that drafted something."
        raise InputError(explain("There is nothing to measure.", "no drafted token", cure))
    profile = np.zeros(tuple(1 + max(column, default=-1) for column in zip(*tried, strict=True)))
    for place, count in tried.items():
        profile[place] = accepted[place] / count
    return profile


def best_nodes(values: Sequence[float], parents: Sequence[int], count: int) -> list[int]:
    """Choose the best `count` nodes of a larger tree. Returns them in ascending order.

    values: the value of each node, which is the chance of its whole path. A child with a higher
    value than its parent, from rounding or a bad estimate, counts with its parent's value.
    """
    tree, worth = Tree(tuple(parents)), list[float]()
    for node, parent in enumerate(tree.parents):
        value = float(values[node])
        worth.append(value if parent == ROOT else min(value, worth[parent]))
    best = sorted(range(len(tree)), key=lambda node: (-worth[node], tree.depths[node], node))
    return sorted(best[:count])


def _profile(given: Any) -> Profile:
    """A checked profile (depths, ranks), with each row made non-increasing.

    Drafters list children in order of preference. If noisy measurements say that a later child is
    likelier than an earlier one, both get their mean, which is the better estimate of either.
    """
    rows = np.atleast_2d(np.asarray(given, dtype=np.float64))
    fine = rows.ndim == 2 and rows.size > 0 and bool(np.all(rows >= 0))
    if not fine or not bool(np.all(rows.sum(axis=1) <= 1 + 1e-9)):
        wrong = "A profile has chances by rank, or by depth and rank, that sum to 1 at most."
        cure = "At most one child of a node is accepted; see measured_profile."
        raise InputError(explain(wrong, given, cure))
    return np.array([_falling(row) for row in rows])


def _falling(row: NDArray[np.float64]) -> list[float]:
    """The nearest non-increasing row: neighbours in the wrong order are replaced by their mean."""
    pools: list[tuple[float, int]] = []  # (mean, number of entries)
    for value in row.tolist():
        mean, size = value, 1
        while pools and pools[-1][0] < mean:
            other, more = pools.pop()
            mean, size = (mean * size + other * more) / (size + more), size + more
        pools.append((mean, size))
    return [mean for mean, size in pools for _ in range(size)]
