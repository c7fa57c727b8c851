"""How drafts are drawn that somebody's verifier judges, where they bring no way of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from forerun.proof.law import Model, Shape, as_tree
from forerun.trees.sibling_laws import Children, draw_children


@dataclass(frozen=True)
class DrawnAs:
    """A drawer of our own: the children of every node in one way, each with the law it came from.

    It keeps nothing between calls, so a draft is drawn once for all that a verifier makes of it.
    """

    how: Children

    def __call__(self, model: Model, shape: Shape, rng: Any) -> tuple[list[int], Any]:
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
"""Each token from its row, after the tokens before it; the rows are reported as they are."""
