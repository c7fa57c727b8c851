"""A guess that has been checked, and what may be left out of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import inf
from typing import Any

import numpy as np

from forerun.drafters.base import Asked
from forerun.rules.types import Drawn
from forerun.trees.tree import ROOT, Tree


@dataclass(frozen=True)
class Proposal:
    """A guess that has been checked."""

    tokens: list[int]
    drawn: Drawn = Drawn.POINT
    probs: np.ndarray[Any, Any] | None = None  # (len(tokens), V)
    tree: Tree | None = None  # None: one after the other
    values: list[float] | None = None  # (len(tokens),): how likely each is to be kept
    parts: list[int] | None = None  # (len(tokens),): who of several drafters made each
    guessed: list[int] | None = None  # (len(tokens),): each one's number in the drafter's guess,
    # where tokens of that guess were left out; None: the numbers are the same

    @property
    def height(self) -> int:
        return len(self.tokens) if self.tree is None else self.tree.height

    def path(self, node: int) -> Sequence[int]:
        """The nodes from the text to a node, itself included; none for -1, the text."""
        return range(node + 1) if self.tree is None else self.tree.path(node)

    def child(self, node: int, token: int) -> int | None:
        """The guess of a token after a node, or after the text for -1."""
        if self.tree is None:
            child = node + 1
            return child if child < len(self.tokens) and self.tokens[child] == token else None
        nodes = self.tree.children[node]
        return next((child for child in nodes if self.tokens[child] == token), None)

    def in_guess(self, path: Sequence[int]) -> Sequence[int]:
        """The nodes of a path as the drafter numbered them."""
        return path if self.guessed is None else [self.guessed[node] for node in path]

    def goes_on(self, node: int) -> bool:
        """Whether there is a guess after a node, or after the text for -1."""
        if self.tree is None:
            return node + 1 < len(self.tokens)
        return bool(self.tree.children[node])


NOTHING = Proposal([])


@dataclass(frozen=True)
class Drafted:
    """The drafts of a round, without the guesses that do not pay."""

    proposals: Sequence[Proposal]  # (A,)
    height: int | None = None  # of the tallest guess before any was left out; None: not asked
    is_trial: bool = False  # it does not seem to pay, and is drafted to learn from it
    asked: Sequence[Sequence[Asked] | None] = ()  # (A,): of several drafters those that were asked,
    # none where there is one, None where nobody was; or empty: one was asked for all rows


def worthwhile(draft: Proposal, bar: float, chances: Sequence[float]) -> Proposal:
    """A draft without the tokens whose chance to be kept is below a bar, or that come after such.

    chances: (len(tokens),).
    """
    if min(chances, default=inf) >= bar:
        return draft
    parents = Tree.chain(len(draft.tokens)).parents if draft.tree is None else draft.tree.parents
    number = {ROOT: ROOT}  # of each node that stays, its new one
    for node, (parent, chance) in enumerate(zip(parents, chances, strict=True)):
        if chance >= bar and parent in number:
            number[node] = len(number) - 1
    nodes = list(number)[1:]
    tree = None
    if draft.tree is not None:
        tree = Tree(tuple(number[parents[node]] for node in nodes))
    return replace(
        draft,
        tokens=[draft.tokens[node] for node in nodes],
        probs=None if draft.probs is None else draft.probs[nodes],
        tree=None if tree is None or tree.is_chain else tree,
        values=draft.values and [draft.values[node] for node in nodes],
        parts=draft.parts and [draft.parts[node] for node in nodes],
        guessed=list(draft.in_guess(nodes)),
    )


@cache
def cut(tree: Tree, height: int) -> Tree:
    """A tree without the nodes past a height."""
    kept = [node for node in range(len(tree)) if tree.depths[node] < height]
    number = {ROOT: ROOT} | {node: index for index, node in enumerate(kept)}
    return Tree(tuple(number[tree.parents[node]] for node in kept))


def fits(tree: Tree, shape: Tree) -> bool:
    """Whether every node of a tree has the children that it has in a shape, or none at all."""
    place = {ROOT: ROOT}
    for node in (ROOT, *range(len(tree))):
        children, places = tree.children[node], shape.children[place[node]]
        if children and len(children) != len(places):
            return False
        place |= dict(zip(children, places, strict=False))
    return True
