"""One round of a user's code in a case: draws a draft, calls the code, checks what it returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from forerun.base.errors import InputError, explain
from forerun.proof.cases import Case
from forerun.proof.law import Model, Prefix, Shape, as_tree, tree_rows
from forerun.trees.sibling_laws import Children, draw_children
from forerun.trees.tree import Tree

Verifier = Callable[..., Sequence[int]]
"""f(draft_tokens (K,), draft_probs (K, V), target_probs (K + 1, V), rng) -> emitted ids.

In a case with a tree the rows are ordered as in `Trial`, and the tree is a fifth argument.
"""
Drawer = Callable[[Model, Any, Any], tuple[Any, ...]]
"""d(model, K or tree, rng) -> (tokens, the probabilities (K, V) it reports for them).

A drawer that changes the shape returns the tree it ended with as a third item.
"""
Drafted = tuple[Any, ...]
"""A verifier's arguments but for its rng: tokens, draft rows, target rows, and any tree."""


@dataclass(frozen=True)
class DrawnAs:
    """Our own drawer: draws the children of every node in one way, and reports each one's law.

    It has no state, so each draft is drawn once for all outcomes of the verifier.
    """

    how: Children

    def __call__(self, model: Model, shape: Shape, rng: Any) -> tuple[list[int], Any]:
        """Draw the children of each node. Returns the tokens and the laws they were drawn from."""
        tree = as_tree(shape)
        tokens, laws = [0] * len(tree), np.zeros((len(tree), len(model(()))))
        for parent in range(-1, len(tree)):
            nodes = list(tree.children[parent])
            if nodes:
                row = model(tuple(tokens[node] for node in tree.path(parent)))
                drawn, laws[nodes] = draw_children(
                    self.how, row, len(nodes), lambda law: int(rng.choice(len(law), p=law))
                )
                for node, token in zip(nodes, drawn, strict=True):
                    tokens[node] = token
        return tokens, laws


draw_plainly = DrawnAs(Children.INDEPENDENT)
"""Draws each token from its row, given the tokens before it, and reports the rows unchanged."""


class InvalidEmission(Exception):
    """The tested code returned something that is not a list of emitted tokens."""


class Round(Protocol):
    """One round of tested code: draws a draft, and emits tokens after a prefix."""

    def drafted(self, case: Case, prefix: Prefix, shape: Shape, rng: Any) -> Drafted: ...

    def emitted(self, case: Case, prefix: Prefix, drafted: Drafted, rng: Any) -> Prefix: ...


@dataclass(frozen=True)
class Verifying:
    """A verifier together with a drawer."""

    function: Verifier
    draw: Drawer

    def drafted(self, case: Case, prefix: Prefix, shape: Shape, rng: Any) -> Drafted:
        """Draw a draft, and compute the target's rows along it."""
        answer = self.draw(lambda path: case.draft(prefix + path), shape, rng)
        tokens = tuple(int(token) for token in answer[0])
        if isinstance(shape, Tree):
            tree = answer[2] if len(answer) > 2 else shape
            more: tuple[Tree, ...] = (tree,)
        else:
            tree, more = Tree.chain(len(tokens)), ()
        target = tree_rows(case.target, prefix, tokens, tree)
        reported = np.asarray(answer[1], dtype=np.float64).reshape(len(tokens), case.vocab_size)
        return np.array(tokens, dtype=np.int64), reported, target, *more

    def emitted(self, case: Case, prefix: Prefix, drafted: Drafted, rng: Any) -> Prefix:
        """Call the verifier; raises if its result is not a valid emission."""
        tokens = self.function(*drafted[:3], rng, *drafted[3:])
        height = drafted[3].height if len(drafted) > 3 else len(drafted[0])
        emitted = checked(tokens, case.vocab_size)
        if not 1 <= len(emitted) <= height + 1:
            raise InvalidEmission(f"emitted {len(emitted)} tokens for a draft of {height}")
        return emitted


def checked(tokens: Any, vocab_size: int) -> Prefix:
    """The emitted tokens as a tuple; raises if they are not ids of the vocabulary."""
    try:
        emitted = tuple(int(token) for token in tokens)
    except TypeError as error:
        wrong = "The function must return the ids that it emits, in order."
        cure = "Return a list of them: the accepted tokens and one more."
        received = f"the {type(tokens).__name__} {tokens!r:.60}"
        raise InputError(explain(wrong, received, cure)) from error
    if not all(0 <= token < vocab_size for token in emitted):
        raise InvalidEmission(f"emitted {list(emitted)} with a vocabulary of {vocab_size}")
    return emitted


def shape_of(case: Case, prefix: Prefix = ()) -> Shape:
    """The shape of a draft after a prefix."""
    shapes = case.draft_length
    return shapes(prefix) if callable(shapes) else shapes
