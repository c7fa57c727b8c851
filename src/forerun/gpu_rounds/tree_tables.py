"""The shape of a drafted tree in the form that kernels read."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

from forerun.trees.tree import ROOT, Tree

PROFILE = (0.55, 0.1, 0.06, 0.03, 0.02, 0.01)
"""Roughly how often the shipped network's first, second, ... guess after a node is right."""


class Level(NamedTuple):
    """The nodes of one depth that have children, each of which is an entry of the drafting
    network."""

    nodes: Sequence[int]
    above: Sequence[int]  # of each: which entry of the level before precedes it
    serials: Sequence[Sequence[int]]  # of each: the numbers of all entries from its first ancestor
    firsts: Sequence[int]  # of each: its first child; the others follow
    counts: Sequence[int]  # of each: its children


class TreeTables:
    """Tables of a tree whose nodes are in level order, with the children of a node side by side."""

    def __init__(self, tree: Tree) -> None:
        self.tree = level_order(tree)

    @cached_property
    def levels(self) -> list[Level]:
        """The levels to draft; the first one's only node is the text itself."""
        tree, serial = self.tree, dict[int, int]()
        children = tree.children
        levels = [Level([ROOT], [0], [[]], [0], [len(children[ROOT])])]
        while True:
            before = levels[-1].nodes
            nodes = [child for node in before for child in children[node] if children[child]]
            if not nodes:
                return levels
            serial |= {node: len(serial) + index for index, node in enumerate(nodes)}
            levels.append(
                Level(
                    nodes,
                    [before.index(tree.parents[node]) for node in nodes],
                    [[serial[above] for above in tree.path(node)] for node in nodes],
                    [children[node][0] for node in nodes],
                    [len(children[node]) for node in nodes],
                )
            )

    @cached_property
    def depths(self) -> list[int]:
        """The depths (N + 1,) of the rows that the target is fed, 0 for the text."""
        return [0, *(depth + 1 for depth in self.tree.depths)]

    @cached_property
    def paths(self) -> list[list[int]]:
        """For each row that the target is fed, the rows on the path from the first node to it,
        followed by zeros, (N + 1, height). The path of the text is the text itself."""
        paths = [[node + 1 for node in self.tree.path(node)] for node in range(len(self.tree))]
        return [path + [0] * (self.tree.height - len(path)) for path in ([0], *paths)]


def level_order(tree: Tree) -> Tree:
    """A copy of the tree with its nodes sorted by level, so that the nodes up to a given depth come
    first."""
    order, level = list[int](), [ROOT]
    while level:
        level = [child for node in level for child in tree.children[node]]
        order += level
    number = {ROOT: ROOT} | {node: index for index, node in enumerate(order)}
    return Tree(tuple(number[tree.parents[node]] for node in order))
