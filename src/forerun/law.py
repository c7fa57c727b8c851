"""The exact law of what a rule emits, with the coins integrated out of the production code.

Models here are functions from a prefix (a tuple of tokens) to a row of probabilities (V,), so a
law is a joint one over several tokens and several rounds, each token seeing those before it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import array_api_compat as compat
import numpy as np

from forerun import rules
from forerun.branches import BranchingNoise, Path, every_path
from forerun.children import Children, next_law
from forerun.errors import InputError, explain
from forerun.rules.base import Rule
from forerun.tree import Tree
from forerun.types import Draft
from forerun.verification import prepare

Prefix = tuple[int, ...]
Model = Callable[[Prefix], np.ndarray[Any, Any]]
"""The next token's probabilities (V,) after a prefix."""
Emission = Mapping[Prefix, float]
"""The tokens a round emits, and how likely."""
Shape = int | Tree
"""What a round drafts: K tokens in a chain, or a tree."""
Shapes = Shape | Callable[[Prefix], Shape]
"""The shape of every round's draft, fixed or as a function of what has been emitted."""
Step = Callable[[Prefix, Shape], Emission]
"""The law of one round's emission after a prefix, with a draft of that shape."""


def law(
    rule: str | Rule,
    target: Model | np.ndarray[Any, Any],
    draft: Model | np.ndarray[Any, Any],
    *,
    draft_length: Shapes | None = None,
    length: int | None = None,
    drawn: str = "sampled",
) -> np.ndarray[Any, Any]:
    """The joint law of the first `length` tokens that rounds under `rule` emit, (V,) * length.

    target, draft: models, or arrays (N, V) of one row per position (a draft of (K, V) sets K).
    draft_length: K, a `Tree`, or a function of what has been emitted that says which.
    drawn: "sampled" from the draft's law, or "point" for its likeliest tokens; the children of a
        tree's node also "without_replacement" or "greedy_plus_one" (see `forerun.children`).
    """
    if draft_length is None:
        if callable(draft):
            cure = "Pass draft_length=K."
            raise InputError(explain("K is not known.", "a draft model", cure))
        draft_length = len(draft)
    target, draft = as_model(target, "target"), as_model(draft, "draft")
    if length is None:
        length = as_tree(draft_length(()) if callable(draft_length) else draft_length).height + 1
    step = rule_step(rule, target, draft, drawn)
    return joint(step, len(target(())), length, draft_length)


def target_law(target: Model | np.ndarray[Any, Any], length: int) -> np.ndarray[Any, Any]:
    """The joint law of `length` tokens sampled plainly from the target, (V,) * length."""
    model = as_model(target, "target")
    plain: Step = lambda prefix, _: {  # noqa: E731
        (token,): chance for token, chance in enumerate(model(prefix))
    }
    return joint(plain, len(model(())), length, 0)


def expected_accepted(
    rule: str | Rule,
    target: Model | np.ndarray[Any, Any],
    draft: Model | np.ndarray[Any, Any],
    draft_length: Shape,
    drawn: str = "sampled",
) -> float:
    """The mean number of draft tokens that one round keeps."""
    step = rule_step(rule, as_model(target, "target"), as_model(draft, "draft"), drawn)
    emissions = step((), draft_length).items()
    return float(sum(chance * (len(emitted) - 1) for emitted, chance in emissions))


def rule_step(rule: str | Rule, target: Model, draft: Model, drawn: str) -> Step:
    """One round of a rule: every draft is a row, every outcome of the noise a path."""
    chosen, how = rules.get(rule), way_of_drawing(drawn)

    def step(prefix: Prefix, shape: Shape) -> Emission:
        tree = as_tree(shape)
        drafts = every_draft(draft, prefix, tree, how)
        tokens = np.array([each.tokens for each in drafts], dtype=np.int64)
        tokens = tokens.reshape(len(drafts), len(tree))
        target_rows = np.array([tree_rows(target, prefix, x.tokens, tree) for x in drafts])
        made = Draft.point(tokens, tree=tree)
        if how is not Children.LIKELIEST and len(tree):
            made = Draft.sampled(tokens, np.array([each.laws for each in drafts]), tree=tree)
        trial = prepare(made, target_rows, None, 1.0, chosen)
        chances = np.array([each.chance for each in drafts])

        def run(path: Path) -> tuple[Any, Any, Any]:
            noise = BranchingNoise(path, len(drafts))
            reached, extra = chosen.decide(trial, noise)
            return reached, extra, noise.weights * chances

        emitted: dict[Prefix, float] = defaultdict(float)
        for reached, extra, weights in every_path(run):
            for row in np.flatnonzero(weights).tolist():
                kept = [drafts[row].tokens[node] for node in trial.path(row, int(reached[row]))]
                emitted[(*kept, int(extra[row]))] += weights[row]
        return emitted

    return step


def way_of_drawing(drawn: str) -> Children:
    """The way of that name."""
    names = [how.value for how in Children]
    if drawn not in names:
        cure = f"Use one of {', '.join(map(repr, names))}."
        raise InputError(explain("drawn is not known.", repr(drawn), cure))
    return Children(drawn)


@dataclass(frozen=True)
class Drafted:
    """One draft that can occur: its tokens, the law of each, and the chance of all together."""

    tokens: Prefix
    laws: tuple[np.ndarray[Any, Any], ...]
    chance: float


def every_draft(draft: Model, prefix: Prefix, tree: Tree, how: Children) -> list[Drafted]:
    """All drafts that can occur, node by node."""
    found = [Drafted((), (), 1.0)]
    for node, parent in enumerate(tree.parents):
        before, siblings = tree.path(parent), tree.children[parent]
        earlier = siblings[: siblings.index(node)]
        longer = []
        for each in found:
            path = tuple(each.tokens[i] for i in before)
            taken = [each.tokens[i] for i in earlier]
            law = next_law(how, draft(prefix + path), taken, len(siblings))
            longer += [
                Drafted((*each.tokens, token), (*each.laws, law), each.chance * float(law[token]))
                for token in np.flatnonzero(law > 0).tolist()
            ]
        found = longer
    return found


def tree_rows(model: Model, prefix: Prefix, tokens: Prefix, tree: Tree) -> Any:
    """The model's rows after the prefix and after each node of a draft, (N + 1, V)."""
    paths = [prefix]
    for node, parent in enumerate(tree.parents):
        paths.append((*paths[parent + 1], tokens[node]))
    return np.array([model(path) for path in paths])


def as_tree(shape: Shape) -> Tree:
    """The shape as a tree: K is a chain."""
    return shape if isinstance(shape, Tree) else Tree.chain(shape)


def joint(step: Step, vocab_size: int, length: int, shapes: Shapes) -> np.ndarray[Any, Any]:
    """Repeat rounds until `length` tokens are out; the law of those, (V,) * length."""
    known: dict[Prefix, np.ndarray[Any, Any]] = {}

    def after(prefix: Prefix) -> np.ndarray[Any, Any]:
        left = length - len(prefix)
        if left == 0:
            return np.ones(())
        if prefix not in known:
            total = np.zeros((vocab_size,) * left)
            shape = shapes(prefix) if callable(shapes) else shapes
            for emitted, chance in step(prefix, shape).items():
                kept = emitted[:left]
                total[kept] += chance * after(prefix + kept)
            known[prefix] = total
        return known[prefix]

    return after(())


def as_model(rows: Model | np.ndarray[Any, Any], name: str) -> Model:
    """A model as it is; an array (N, V) as the model that reads its rows by position."""
    if callable(rows):
        return rows
    table = np.asarray(rows, dtype=np.float64)
    if table.ndim != 2 or 0 in table.shape or not compat.is_numpy_array(table):
        cure = "Pass (N, V): one row of probabilities per position."
        raise InputError(explain(f"{name} rows have a wrong shape.", table.shape, cure))
    return lambda prefix: table[min(len(prefix), len(table) - 1)]
