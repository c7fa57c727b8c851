"""Computes the exact law (distribution) of what a rule emits, by running the production code on all
outcomes.

Models are functions from a prefix (a tuple of tokens) to a row of probabilities (V,). The law is a
joint one over several tokens and several rounds, each token depending on those before it.

Rounds share random numbers if their addresses are equal. What a round has shown about numbers that
a later round may use is carried along with the text, so such reuse is followed correctly.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import array_api_compat as compat
import numpy as np

from forerun import rules
from forerun.base.arrays import HostArray
from forerun.base.errors import InputError, UnsupportedError, explain, shown_by
from forerun.noise.addresses import Address, Addressing, Purpose, by_round
from forerun.proof.branches import WHOLE, BranchingNoise, Memory, Path, Span, edges, every_path
from forerun.rules.base import Rule, slices
from forerun.rules.types import Draft
from forerun.trees.sibling_laws import Children, next_law
from forerun.trees.tree import Tree
from forerun.verification import prepare

Prefix = tuple[int, ...]
"""The tokens so far, by their ids."""
Model = Callable[[Prefix], HostArray]
"""The next token's probabilities (V,) after a prefix."""
Emission = Mapping[tuple[Prefix, Memory], float]
"""The possible results of a round with their probabilities. A result is the emitted tokens,
together with what is then known about numbers that later rounds may use."""
Shape = int | Tree
"""The shape of a draft: K tokens in a chain, or a tree."""
Shapes = Shape | Callable[[Prefix], Shape]
"""The shape of every round's draft, fixed or as a function of what has been emitted."""
Step = Callable[[Sequence[Prefix], Shape, Memory], Sequence[Emission]]
"""A function that computes, for several prefixes of one length, the law of the next round's
emission, given the shape of the draft and what is known about random numbers."""
MAX_ROWS = 2**12
"""The most drafts that are followed at once."""


@shown_by('fr.law("ratio", target_probs, draft_probs)')
def law(
    rule: str | Rule,
    target: Model | HostArray,
    draft: Model | HostArray,
    *,
    draft_length: Shapes | None = None,
    length: int | None = None,
    drawn: str = "sampled",
    addressing: Addressing = by_round,
) -> HostArray:
    """The joint law of the first `length` tokens emitted by rounds under `rule`, (V,) * length.

    target, draft: models, or arrays (N, V) with one row per position (a draft of (K, V) sets K).
    draft_length: K, a `Tree`, or a function that gives either from what has been emitted.
    drawn: "sampled" from the draft's law, or "point" for its likeliest tokens; the children of a
    tree's node also "without_replacement" or "greedy_plus_one" (see `forerun.trees.sibling_laws`).
    addressing: where the random numbers of a round's slots lie. A number that is used twice is
    followed as the same number, so the resulting bias is in the law; `certify` reports its address.
    """
    if draft_length is None:
        if callable(draft):
            cure = "Pass draft_length=K."
            raise InputError(explain("K is not known.", "a draft model", cure))
        draft_length = len(draft)
    target, draft = as_model(target, "target"), as_model(draft, "draft")
    if length is None:
        length = as_tree(draft_length(()) if callable(draft_length) else draft_length).height + 1
    step = rule_step(rule, target, draft, drawn, addressing)
    emitted = joint(step, len(target(())), length, draft_length)
    raced = sorted(at.position for at in step.reused if at.purpose is Purpose.TARGET)
    if raced:
        wrong = "A position is raced twice with the same noise, which cannot be followed."
        cure = "Race a position only in the round that emits its token."
        raise UnsupportedError(explain(wrong, f"position {raced[0]}", cure))
    return emitted


@shown_by("fr.target_law(target_probs, 2)")
def target_law(target: Model | HostArray, length: int) -> HostArray:
    """The joint law of `length` tokens sampled plainly from the target, (V,) * length."""
    model = as_model(target, "target")
    plain: Step = lambda prefixes, *_: [  # noqa: E731
        {((token,), ()): chance for token, chance in enumerate(model(prefix))}
        for prefix in prefixes
    ]
    return joint(plain, len(model(())), length, 0)


def expected_accepted(
    rule: str | Rule,
    target: Model | HostArray,
    draft: Model | HostArray,
    draft_length: Shape,
    drawn: str = "sampled",
) -> float:
    """The mean number of draft tokens that one round accepts."""
    step = rule_step(rule, as_model(target, "target"), as_model(draft, "draft"), drawn)
    (emission,) = step([()], draft_length)
    return float(sum(chance * (len(emitted) - 1) for (emitted, _), chance in emission.items()))


def rule_step(
    rule: str | Rule, target: Model, draft: Model, drawn: str, addressing: Addressing = by_round
) -> RuleStep:
    """Make one round of a rule as a function, given the rule's name or object."""
    return RuleStep(rules.get(rule), target, draft, way_of_drawing(drawn), addressing)


@dataclass(frozen=True)
class RuleStep:
    """One round of a rule. Every possible draft is a row, and every outcome of the noise a path."""

    rule: Rule
    target: Model
    draft: Model
    how: Children
    addressing: Addressing = by_round
    reused: set[Address] = field(default_factory=set)
    """Every address that was met twice on some path, so far."""

    def __call__(
        self, prefixes: Sequence[Prefix], shape: Shape, memory: Memory = ()
    ) -> list[Emission]:
        """The laws of what one round emits after each of some prefixes."""
        tree = as_tree(shape)
        at_once = MAX_ROWS // len(self.target(prefixes[0])) ** len(tree)
        runs = slices(len(prefixes), max(1, at_once))
        return [emission for some in runs for emission in self._some(prefixes[some], tree, memory)]

    def _some(self, prefixes: Sequence[Prefix], tree: Tree, memory: Memory) -> list[Emission]:
        """The laws for a few prefixes, whose possible drafts fit into one batch."""
        first = len(prefixes[0])
        drafted_after = [self._drafts(prefix, tree, memory) for prefix in prefixes]
        drafts = [drafted for some in drafted_after for drafted in some]
        after = np.repeat(np.arange(len(prefixes)), [len(some) for some in drafted_after]).tolist()
        tokens = np.array([drafted.tokens for drafted in drafts], dtype=np.int64)
        tokens = tokens.reshape(len(drafts), len(tree))
        rows = np.array(
            [
                tree_rows(self.target, prefix, drafted.tokens, tree)
                for prefix, some in zip(prefixes, drafted_after, strict=True)
                for drafted in some
            ]
        )
        made = Draft.point(tokens, tree=tree)
        if self.how is not Children.LIKELIEST and len(tree):
            made = Draft.sampled(tokens, np.array([drafted.laws for drafted in drafts]), tree=tree)
        trial = prepare(made, rows, None, 1.0, self.rule)
        chances = np.array([drafted.chance for drafted in drafts])
        met = tuple(item for item in memory if item[0].purpose is not Purpose.DRAFT)

        def run(path: Path) -> tuple[Any, Any, BranchingNoise]:
            """Run the rule on one path: the rows reached, the tokens after them, and the noise that
            was used."""
            noise = BranchingNoise(path, len(drafts), first, self.addressing, met)
            return *self.rule.decide(trial, noise), noise

        last_drafted = max((at.position for drafted in drafts for at in drafted.known), default=-1)
        emitted: list[dict[tuple[Prefix, Memory], float]] = [defaultdict(float) for _ in prefixes]
        for reached, extra, noise in every_path(run):
            self.reused.update(noise.reused)
            weights = noise.weights * chances
            last = max(last_drafted, noise.last)
            for row in np.flatnonzero(weights).tolist():
                kept = [drafts[row].tokens[node] for node in trial.path(row, int(reached[row]))]
                text = (*kept, int(extra[row]))
                learned: Memory = ()
                if last >= first + len(text):
                    learned = noise.remembered(row, first + len(text))
                    learned += drafts[row].remembered(first + len(text))
                emitted[after[row]][text, learned] += weights[row]
        return list(emitted)

    def _drafts(self, prefix: Prefix, tree: Tree, memory: Memory) -> list[Drafted]:
        """All possible drafts, built node by node."""
        known = {at: span for at, span in memory if at.purpose is Purpose.DRAFT}
        partial = [Drafted((), (), 1.0, known)]
        for node, parent in enumerate(tree.parents):
            place = self.addressing(Purpose.DRAFT, len(prefix), node)
            address = Address(Purpose.DRAFT, *place)
            before, siblings = tree.path(parent), tree.children[parent]
            earlier = siblings[: siblings.index(node)]
            longer: list[Drafted] = []
            for shorter in partial:
                path = tuple(shorter.tokens[i] for i in before)
                taken = [shorter.tokens[i] for i in earlier]
                law = next_law(self.how, self.draft(prefix + path), taken, len(siblings))
                longer += shorter.followed(law, address)
                is_used = address in shorter.known or address.position < len(prefix)
                if is_used and law.max() < 1:
                    self.reused.add(address)
            partial = longer
        return partial


def way_of_drawing(drawn: str) -> Children:
    """The way of drawing with this name."""
    names = [how.value for how in Children]
    if drawn not in names:
        cure = f"Use one of {', '.join(map(repr, names))}."
        raise InputError(explain("drawn is not known.", repr(drawn), cure))
    return Children(drawn)


@dataclass(frozen=True)
class Drafted:
    """One possible draft: its tokens, the law of each, and the probability of the whole draft."""

    tokens: Prefix
    laws: tuple[HostArray, ...]
    chance: float
    known: Mapping[Address, Span]
    """The intervals of the random numbers that drew this draft or earlier ones."""

    def followed(self, law: HostArray, address: Address) -> Iterator[Drafted]:
        """Yield the drafts with one more token, drawn from law (V,) by the number at an address."""
        tokens, laws = np.flatnonzero(law > 0).tolist(), (*self.laws, law)
        if len(tokens) == 1:  # certain: its number says nothing
            yield replace(self, tokens=(*self.tokens, tokens[0]), laws=laws)
            return
        low, high = self.known.get(address, WHOLE)
        bounds = edges(law[None])[0]
        for token in tokens:
            start, end = max(bounds[token], low), min(bounds[token + 1], high)
            share = law[token] if address not in self.known else (end - start) / (high - low)
            if share > 0:
                known = {**self.known, address: (float(start), float(end))}
                yield Drafted((*self.tokens, token), laws, self.chance * float(share), known)

    def remembered(self, first: int) -> Memory:
        """The facts known about random numbers that a round starting at `first` may use."""
        return tuple(sorted(item for item in self.known.items() if item[0].position >= first))


def tree_rows(model: Model, prefix: Prefix, tokens: Prefix, tree: Tree) -> Any:
    """The model's rows after the prefix and after each node of a draft, (N + 1, V)."""
    paths = [prefix]
    for node, parent in enumerate(tree.parents):
        paths.append((*paths[parent + 1], tokens[node]))
    return np.array([model(path) for path in paths])


def as_tree(shape: Shape) -> Tree:
    """The shape as a tree; a number K gives a chain."""
    return shape if isinstance(shape, Tree) else Tree.chain(shape)


def joint(step: Step, vocab_size: int, length: int, shapes: Shapes) -> HostArray:
    """The joint law of the first `length` tokens of repeated rounds, (V,) * length."""
    ends: list[dict[tuple[Prefix, Memory], float]] = [defaultdict(float) for _ in range(length + 1)]
    ends[0][(), ()] = 1.0  # by number of tokens: what a round may end with, and how likely
    for begun in ends[:-1]:
        alike: dict[tuple[Shape, Memory], list[Prefix]] = defaultdict(list)
        for prefix, memory in begun:
            alike[shapes(prefix) if callable(shapes) else shapes, memory].append(prefix)
        for (shape, memory), prefixes in alike.items():
            for prefix, emission in zip(prefixes, step(prefixes, shape, memory), strict=True):
                for (emitted, learned), chance in emission.items():
                    text = (*prefix, *emitted)[:length]
                    ends[len(text)][text, learned] += begun[prefix, memory] * chance
    total = np.zeros((vocab_size,) * length)
    for (text, _), chance in ends[-1].items():
        total[text] += chance
    return total


def as_model(rows: Model | HostArray, name: str) -> Model:
    """The model itself; for an array (N, V), a model that reads its row by position."""
    if callable(rows):
        return rows
    table = np.asarray(rows, dtype=np.float64)
    if table.ndim != 2 or 0 in table.shape or not compat.is_numpy_array(table):
        cure = "Pass (N, V): one row of probabilities per position."
        raise InputError(explain(f"{name} rows have a wrong shape.", table.shape, cure))
    return lambda prefix: table[min(len(prefix), len(table) - 1)]
