"""Checks a drafter's guess before the target or a rule uses it; a checked guess is a `Proposal`."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import inf
from typing import Any

import numpy as np

from forerun.base.arrays import numpy_namespace
from forerun.base.errors import InputError, UnsupportedError, explain, wrong_type
from forerun.drafters.base import Asked, Guess, Turn
from forerun.models.base import LanguageModel
from forerun.rules.base import Rule
from forerun.rules.rows import check_rows, sum_tolerance
from forerun.rules.types import Drawn
from forerun.trees.tree import ROOT, Tree

SHAPES = "a shape known before, like Tree.of_branching((2, 2)) or --tree 2,2"
"""The trees that rules with coins accept, as a phrase for error messages."""


@dataclass(frozen=True)
class Proposal:
    """A guess that has been checked; guesses that do not pay may have been removed from it."""

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
        """The number of tokens on the longest path."""
        return len(self.tokens) if self.tree is None else self.tree.height

    def path(self, node: int) -> Sequence[int]:
        """The nodes from the text to a node, itself included; empty for -1, which stands for the
        text."""
        return range(node + 1) if self.tree is None else self.tree.path(node)

    def child(self, node: int, token: int) -> int | None:
        """The child of a node that guesses `token`, or None. Node -1 stands for the text."""
        if self.tree is None:
            child = node + 1
            return child if child < len(self.tokens) and self.tokens[child] == token else None
        nodes = self.tree.children[node]
        return next((child for child in nodes if self.tokens[child] == token), None)

    def in_guess(self, path: Sequence[int]) -> Sequence[int]:
        """The nodes of a path, numbered as in the drafter's own guess."""
        return path if self.guessed is None else [self.guessed[node] for node in path]

    def goes_on(self, node: int) -> bool:
        """Whether any guess follows a node. Node -1 stands for the text."""
        if self.tree is None:
            return node + 1 < len(self.tokens)
        return bool(self.tree.children[node])


NOTHING = Proposal([])


@dataclass(frozen=True)
class Drafted:
    """The drafts of a round, after guesses that do not pay were removed."""

    proposals: Sequence[Proposal]  # (A,)
    height: int | None = None  # of the tallest guess before any was left out; None: not asked
    is_trial: bool = False  # it does not seem to pay, and is drafted to learn from it
    asked: Sequence[Sequence[Asked] | None] = ()  # (A,): of several drafters those that were asked,
    # none where there is one, None where nobody was; or empty: one was asked for all rows


def worthwhile(draft: Proposal, bar: float, chances: Sequence[float]) -> Proposal:
    """A draft without the tokens that are too unlikely to be kept, and without what follows them.

    bar: the lowest chance that stays.
    chances: each token's chance of being kept, (len(tokens),).
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
    """A tree reduced to its first `height` levels."""
    kept = [node for node in range(len(tree)) if tree.depths[node] < height]
    number = {ROOT: ROOT} | {node: index for index, node in enumerate(kept)}
    return Tree(tuple(number[tree.parents[node]] for node in kept))


def fits(tree: Tree, shape: Tree) -> bool:
    """Whether each node of a tree either has no children, or as many as the same node of
    `shape`."""
    place = {ROOT: ROOT}
    for node in (ROOT, *range(len(tree))):
        children, places = tree.children[node], shape.children[place[node]]
        if children and len(children) != len(places):
            return False
        place |= dict(zip(children, places, strict=False))
    return True


def checked(turn: Turn, guess: Any, target: LanguageModel, rule: Rule) -> Proposal:
    """The guess as a `Proposal`; raises if the guess breaks a promise of drafters."""
    if not isinstance(guess, Guess):
        wrong, cure = "it gave something that is no Guess.", "Return Guess(tokens=[...])."
        raise UnsupportedError(explain(wrong, f"{guess!r:.60}", cure))
    size = target.vocab_size
    tokens = [operator.index(token) for token in guess.tokens]
    if not tokens:
        return NOTHING
    if min(tokens) < 0 or max(tokens) >= size:
        outside = [token for token in tokens if not 0 <= token < size]
        wrong = "it proposed tokens that are not in the target's vocabulary."
        raise UnsupportedError(explain(wrong, outside, f"Ids must lie in 0 .. {size - 1}."))
    if len(tokens) > turn.budget:
        wrong = "it proposed more tokens than it was asked for."
        raise UnsupportedError(explain(wrong, len(tokens), f"At most {turn.budget}."))
    tree = _checked_tree(turn, guess)
    if guess.values is not None and len(guess.values) != len(tokens):
        cure = f"There must be one for each of the {len(tokens)} tokens."
        raise UnsupportedError(explain("its values do not fit.", len(guess.values), cure))
    if rule.needs_draft_probs:
        _check_law(turn, guess, tree, target, rule)
    values = guess.values and [min(1.0, max(0.0, float(value))) for value in guess.values]
    return Proposal(tokens, guess.drawn, guess.probs, tree, values, guess.parts)


def _checked_tree(turn: Turn, guess: Guess) -> Tree | None:
    """The tree of a guess, None for a chain; raises if the turn does not allow it."""
    if guess.parents is None:
        tree = None
    else:
        tree = Tree(tuple(guess.parents))
        if len(tree) != len(guess.tokens):
            cure = f"There must be one for each of the {len(guess.tokens)} tokens."
            raise UnsupportedError(explain("its parents do not fit.", len(tree), cure))
        tree = None if tree.is_chain else tree
    if tree is not None and turn.is_chain:
        wrong, cure = "it proposed a tree.", "Only a chain was asked for."
        raise UnsupportedError(explain(wrong, f"parents {list(tree.parents)}", cure))
    height = len(guess.tokens) if tree is None else tree.height
    if height > turn.height:
        wrong = "it proposed too many tokens after one another."
        raise UnsupportedError(explain(wrong, height, f"At most {turn.height}."))
    return tree


def _check_law(
    turn: Turn, guess: Guess, tree: Tree | None, target: LanguageModel, rule: Rule
) -> None:
    """Refuse a guess whose draft probabilities the rule could not divide by."""
    count, name = len(guess.tokens), rule.name
    if guess.drawn is Drawn.SHARED:
        wrong = f"it used the target's noise under the rule {name!r}."
        raise UnsupportedError(explain(wrong, "shared noise", "Draw with noise of its own."))
    if guess.drawn is Drawn.PRUNED:
        wrong = f"it chose its guesses by their tokens under the rule {name!r}."
        cure = "Decide what to draft before drawing it, or use the rule match."
        raise UnsupportedError(explain(wrong, "a pruned draft", cure))
    if guess.drawn is not Drawn.SAMPLED:
        return
    shape = None if guess.probs is None else guess.probs.shape
    expected = (count, target.vocab_size)
    if shape != expected:
        wrong = "its probabilities have a wrong shape."
        raise UnsupportedError(explain(wrong, shape, f"They must be {expected}."))
    assert guess.probs is not None
    slots = np.arange(count)
    rows, tolerance = np.full_like(slots, turn.row), sum_tolerance(guess.probs)
    check_rows(numpy_namespace(), guess.probs, rows, slots, "its distribution", tolerance)
    if not (guess.probs[slots, guess.tokens] > 0).all():
        wrong = "it proposed tokens that its own probabilities call impossible."
        raise UnsupportedError(
            explain(wrong, guess.tokens, "Pass the distribution they were drawn from.")
        )
    if turn.shape is not None and not fits(tree or Tree.chain(count), turn.shape):
        wrong = "its tree is not the one it was asked for."
        received = "a chain" if tree is None else f"parents {list(tree.parents)}"
        cure = f"A node has the children it has in {list(turn.shape.parents)}, or none."
        raise UnsupportedError(explain(wrong, received, cure))


def check_tree(tree: Any, rule: Rule, target: LanguageModel) -> None:
    """Refuse a tree that the rule or the target cannot handle."""
    if tree is None:
        return
    cure = "Use a number of nodes from 1 on, a forerun.Tree, or None for chains."
    if not isinstance(tree, int | Tree):
        like = "For one child count per level, write forerun.Tree.of_branching((2, 2))."
        raise wrong_type("tree", tree, f"{cure} {like}")
    if isinstance(tree, int) and tree < 1:
        raise InputError(explain("tree is out of range.", tree, cure))
    if not rule.judges_trees:
        given = "" if isinstance(tree, Tree) else f"; the last two with {SHAPES}"
        cure = f"Use match, siblings or traversal{given}; or leave the tree out."
        raise UnsupportedError(explain("This rule judges chains only.", rule.name, cure))
    if not rule.needs_draft_probs:
        return
    if not isinstance(tree, Tree):
        wrong = "A rule that needs the draft's distribution cannot judge a tree of any shape."
        cure = f"Pass {SHAPES}, or use the rule match."
        raise UnsupportedError(explain(wrong, f"tree={tree} with {rule.name}", cure))
    if not getattr(target, "scores_trees", False):
        wrong = f"{target.name} cannot score trees, and a sampled tree may not be cut to a chain."
        cure = "Leave the tree out, or use the rule match."
        raise UnsupportedError(explain(wrong, f"a tree with {rule.name}", cure))
