"""Broken verifiers and drawers of trees, in the manner of `broken.py`.

They share `descend`, the walk from the root down, or `traverse`, the one from the leaves up, and
change one thing in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from forerun.base.arrays import HostArray
from forerun.proof.broken import sample
from forerun.proof.law import Model
from forerun.proof.rounds import Drawer, draw_plainly
from forerun.trees.sibling_laws import Children, draw_children
from forerun.trees.tree import ROOT, Tree


def owed(law: HostArray, drawn: HostArray) -> HostArray:
    """(P - q)+ as a law, or P where nothing is left of it."""
    part = np.maximum(law - drawn, 0.0)
    return np.asarray(part / part.sum()) if part.sum() > 1e-12 else law


def descend(
    tokens: Any,
    draft: Any,
    target: Any,
    rng: Any,
    tree: Tree,
    *,
    order: Callable[[tuple[int, ...]], Iterable[int]] = tuple,
    update: Callable[[HostArray, HostArray], HostArray] = owed,
    correction: Callable[[HostArray, HostArray], HostArray] = lambda law, left: left,
) -> list[int]:
    """The correct `siblings` rule, with each of its parts open to replacement."""
    node, kept = ROOT, list[int]()
    while True:
        left, before = target[node + 1], node
        for child in order(tree.children[node]):
            token = int(tokens[child])
            if rng.random() < left[token] / draft[child][token]:
                node, kept = child, [*kept, token]
                break
            left = update(left, draft[child])
        if node == before:
            return [*kept, sample(rng, correction(target[node + 1], left))]


def traverse(
    tokens: Any,
    draft: Any,
    target: Any,
    rng: Any,
    tree: Tree,
    *,
    chance_left: Callable[[float, float], float] = lambda r, s: s / (s + 1 - r) if s > 0 else 0.0,
    token_residual: bool = False,
) -> list[int]:
    """The correct `traversal` rule as it is usually written, and two mistakes one can make."""

    def visit(node: int, debt: float) -> tuple[int, HostArray] | None:
        """The node at which the path ends and the law there, or None if it ends above this node;
        debt: the share of the node's law that is still owed.
        """
        law = target[node + 1]
        for child in tree.children[node]:
            token = int(tokens[child])
            stop = visit(child, min(debt * law[token] / draft[child][token], 1.0))
            if stop:
                return stop
            missing = float(np.maximum(debt * law - draft[child], 0.0).sum())
            left = np.maximum((1.0 if token_residual else debt) * law - draft[child], 0.0)
            law = left / left.sum() if left.sum() > 1e-12 else law
            debt = chance_left(debt, missing)
        return (node, law) if node == ROOT or rng.random() < debt else None

    node, law = visit(ROOT, 1.0) or (ROOT, target[0])
    return [*(int(tokens[step]) for step in tree.path(node)), sample(rng, law)]


def likeliest_first(tokens: Any, draft: Any, target: Any, rng: Any, tree: Tree) -> list[int]:
    """Tries children by how much likelier the target has them, and not in the order drawn."""

    def gain(child: int) -> float:
        """p(x) / q(x) of a child."""
        token, before = tokens[child], tree.parents[child] + 1
        return float(target[before][token] / draft[child][token])

    return descend(
        tokens, draft, target, rng, tree, order=lambda nodes: sorted(nodes, key=gain, reverse=True)
    )


def owed_undivided(law: HostArray, drawn: HostArray) -> HostArray:
    """The residual after a child, without making it sum to 1."""
    part = np.maximum(law - drawn, 0.0)
    return part if part.sum() > 1e-12 else law


def sample_per_path(tokens: Any, draft: Any, target: Any, rng: Any, tree: Tree) -> list[int]:
    """Every path is matched against target samples of its own; the longest match is kept."""
    longest = [] if len(tree) else [sample(rng, target[0])]
    for leaf in tree.leaves:
        emitted: list[int] = []
        for node in tree.path(leaf):
            emitted.append(sample(rng, target[tree.parents[node] + 1]))
            if emitted[-1] != tokens[node]:
                break
        else:
            emitted.append(sample(rng, target[leaf + 1]))
        longest = max(longest, emitted, key=len)
    return longest


def draw_reporting_row(how: Children) -> Drawer:
    """Children drawn in one way, and reported as if each had been drawn from the whole row."""

    def draw(model: Model, tree: Tree, rng: Any) -> tuple[list[int], Any]:
        """Draw the children of each node, and report for all the row that the first came from."""
        tokens, rows = [0] * len(tree), np.zeros((len(tree), len(model(()))))
        for parent in (ROOT, *range(len(tree))):
            nodes = list(tree.children[parent])
            row = model(tuple(tokens[node] for node in tree.path(parent)))
            drawn, _ = draw_children(
                how, row, len(nodes), lambda law: int(rng.choice(len(law), p=law))
            )
            for node, token in zip(nodes, drawn, strict=True):
                tokens[node], rows[node] = token, np.maximum(row, 1e-9)
        return tokens, rows

    return draw


def draw_and_prune(model: Model, tree: Tree, rng: Any) -> tuple[list[int], Any, Tree]:
    """Throw sampled tokens of low probability away, with all that follows them."""
    tokens, rows = draw_plainly(model, tree, rng)
    sure = [rows[node][token] >= 0.3 for node, token in enumerate(tokens)]
    kept = [n for n in range(len(tree)) if all(sure[step] for step in tree.path(n))]
    return [tokens[node] for node in kept], rows[kept], tree.only(kept)
