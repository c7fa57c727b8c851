"""Wrong verifiers and drawers, written the way such bugs usually are.

Most verifiers reuse `walk`, the left-to-right loop of the correct rule, or `block`; those for trees
reuse `descend`, from the root down, or `traverse`, from the leaves up. Each changes one thing.
`mutants.py` lists them with what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from forerun.base.arrays import Array, HostArray
from forerun.noise.addresses import Purpose, by_round
from forerun.proof.law import Model
from forerun.proof.rounds import Drawer, draw_plainly
from forerun.rules.base import Noise, Residual, Trial
from forerun.rules.block import Block
from forerun.trees.sibling_laws import Children, draw_children
from forerun.trees.tree import ROOT, Tree


def sample(rng: Any, weights: HostArray) -> int:
    """Draw a token with probabilities proportional to the weights."""
    total = weights.sum()
    return int(rng.choice(len(weights), p=weights / total))


def owed(target: HostArray, draft: HostArray) -> HostArray:
    """The residual (p - q)+, or p if that is empty."""
    part = np.maximum(target - draft, 0.0)
    return part if part.sum() > 1e-12 else target


def walk(
    tokens: Any,
    draft: Any,
    target: Any,
    rng: Any,
    chance: Callable[[HostArray, HostArray, int], float] = lambda p, q, x: p[x] / q[x],
    correction: Callable[[HostArray, HostArray], HostArray] = owed,
    bonus_row: int = -1,
) -> list[int]:
    """The correct `ratio` rule; arguments can replace each of its parts."""
    kept: list[int] = []
    for slot, token in enumerate(tokens):
        if rng.random() < chance(target[slot], draft[slot], token):
            kept.append(token)
        else:
            return [*kept, sample(rng, correction(target[slot], draft[slot]))]
    return [*kept, sample(rng, target[bonus_row])]


def sharpened(row: HostArray, power: float) -> HostArray:
    """A row at another temperature; power: 1 / temperature."""
    weights = row**power
    return np.asarray(weights / weights.sum())


def draw_from(change: Callable[[HostArray], HostArray]) -> Drawer:
    """A drawer that draws from a changed distribution but reports the unchanged one."""

    def draw(model: Model, draft_length: int, rng: Any) -> tuple[list[int], Any]:
        """Draw each token given those before it."""
        tokens: list[int] = []
        for _ in range(draft_length):
            tokens.append(sample(rng, change(model(tuple(tokens)))))
        rows = [model(tuple(tokens[:slot])) for slot in range(draft_length)]
        return tokens, np.array(rows)

    return draw


def draw_confident(model: Model, draft_length: int, rng: Any) -> tuple[list[int], Any]:
    """Drop a sampled token if its own probability is low, and stop there."""
    tokens, rows = draw_plainly(model, draft_length, rng)
    for slot, token in enumerate(tokens):
        if rows[slot][token] < 0.3:
            return tokens[:slot], rows[:slot]
    return tokens, rows


def draw_one_row(model: Model, draft_length: int, rng: Any) -> tuple[list[int], Any]:
    """Draw all K tokens from the law of the first position, without replacement."""
    row = model(())
    weights, tokens = row.copy(), list[int]()
    for _ in range(draft_length):
        if weights.sum() <= 0:
            weights = row.copy()
        tokens.append(sample(rng, weights))
        weights[tokens[-1]] = 0.0
    return tokens, np.array([row] * draft_length)


def from_argmax(row: HostArray) -> HostArray:
    """A point mass on the likeliest token."""
    return np.asarray(np.eye(len(row))[int(np.argmax(row))])


def from_few_bits(row: HostArray) -> HostArray:
    """A distribution rounded to three bits of mantissa, a coarser version of bfloat16."""
    mantissa, exponent = np.frexp(row)
    return sharpened(np.ldexp(np.round(mantissa * 8) / 8, exponent), 1.0)


def bare_target(tokens: Any, draft: Any, target: Any, rng: Any) -> list[int]:
    """Accept with chance p(x) instead of p(x) / q(x), and correct by p."""
    return walk(tokens, draft, target, rng, lambda p, q, x: p[x], lambda p, q: p)


def first_unchecked(tokens: Any, draft: Any, target: Any, rng: Any) -> list[int]:
    """Accept the first token without a test."""
    if not len(tokens):
        return walk(tokens, draft, target, rng)
    return [int(tokens[0]), *walk(tokens[1:], draft[1:], target[1:], rng)]


def off_by_one(tokens: Any, draft: Any, target: Any, rng: Any) -> list[int]:
    """Judge every slot by the target row after the right one."""
    return walk(tokens, draft, np.concatenate([target[1:], target[-1:]]), rng)


def bonus_after_refusal(tokens: Any, draft: Any, target: Any, rng: Any) -> list[int]:
    """Treat K emitted tokens as K accepted ones, so that a refusal in the last slot also gets a
    bonus."""
    emitted = walk(tokens, draft, target[:-1], rng) if len(tokens) else []
    kept = emitted[: len(tokens)]
    return [*kept, sample(rng, target[-1])] if len(kept) == len(tokens) else kept


def stale_rows(tokens: Any, draft: Any, target: Any, rng: Any) -> list[int]:
    """Judge every slot by the first target row."""
    return walk(tokens, draft, np.repeat(target[:1], len(target), axis=0), rng)


def one_coin(tokens: Any, draft: Any, target: Any, rng: Any) -> list[int]:
    """Judge all slots by the same random number."""
    coin = rng.random()
    kept: list[int] = []
    for slot, token in enumerate(tokens):
        if not coin < target[slot][token] / draft[slot][token]:
            return [*kept, sample(rng, owed(target[slot], draft[slot]))]
        kept.append(token)
    return [*kept, sample(rng, target[-1])]


def argmax_correction(tokens: Any, draft: Any, target: Any, rng: Any) -> list[int]:
    """Replace a refused token by the likeliest token of the residual, instead of sampling."""
    return walk(tokens, draft, target, rng, correction=lambda p, q: from_argmax(owed(p, q)))


def redraw_on_mismatch(tokens: Any, draft: Any, target: Any, rng: Any) -> list[int]:
    """Draw from the target, and draw once more if the token differs from the draft."""
    kept: list[int] = []
    for slot, token in enumerate(tokens):
        if sample(rng, target[slot]) != token:
            return [*kept, sample(rng, target[slot])]
        kept.append(token)
    return [*kept, sample(rng, target[-1])]


def padded_vocabulary(tokens: Any, draft: Any, target: Any, rng: Any) -> list[int]:
    """Give probability to ids past the end of the vocabulary, as padded logits do."""
    pad = np.full((len(target), 1), 0.05)
    return walk(tokens, np.pad(draft, ((0, 0), (0, 1))), np.concatenate([target, pad], axis=1), rng)


def top_children_as_sampled(tokens: Any, draft: Any, target: Any, rng: Any) -> list[int]:
    """Judge the likeliest children as if they had been sampled."""
    if not len(tokens):
        return walk(tokens, draft, target, rng)
    left, law = target[0], draft[0]
    for child in np.argsort(-law, kind="stable")[:2]:
        if law[child] > 0 and rng.random() < left[child] / law[child]:
            return [int(child)]
        part = owed(left, law)
        left = part / part.sum()
    return [sample(rng, left)]


def coarse_exponentials(tokens: Any, draft: Any, target: Any, rng: Any) -> list[int]:
    """Sample and match by a race whose noise has only 2 bits and can be exactly 0."""
    weights = target[0]
    noise = np.array([-np.log1p(-rng.integers(4) / 4) for _ in weights])
    times = np.where(weights > 0, noise / np.where(weights > 0, weights, 1.0), np.inf)
    return [int(np.argmin(times))]


def block(
    tokens: Any,
    draft: Any,
    target: Any,
    rng: Any,
    *,
    stop_at_failure: bool = False,
    token_residual: bool = False,
    survival: Callable[[float, float, float], float] = lambda pi, p, q: min(pi * p / q, 1.0),
    point: bool = False,
    whole: bool = False,
) -> list[int]:
    """Block verification as it is usually written, left to right; arguments add its usual
    mistakes."""
    num_slots = len(tokens)
    pi, best, kept = 1.0, 1.0, 0
    product = 1.0
    for slot, token in enumerate(tokens):
        chance_q = 1.0 if point else draft[slot][token]
        pi = survival(pi, target[slot][token], chance_q)
        product *= target[slot][token] / chance_q
        used = min(1.0, product) if whole else pi
        if slot + 1 == num_slots:
            bar = used
        else:
            missing = np.maximum(used * target[slot + 1] - draft[slot + 1], 0.0).sum()
            bar = missing / (missing + 1 - used) if missing + 1 - used > 0 else 1.0
        if rng.random() < bar:
            kept, best = slot + 1, used
        elif stop_at_failure:
            break
    if kept == num_slots:
        return [*map(int, tokens), sample(rng, target[-1])]
    scale = 1.0 if token_residual else best
    row = np.maximum(scale * target[kept] - draft[kept], 0.0)
    return [*map(int, tokens[:kept]), sample(rng, row if row.sum() > 1e-12 else target[kept])]


class SharedUniform:
    """A verifier that decides acceptance by the same random number that drew the token."""

    def __init__(self) -> None:
        """Start without any stored numbers."""
        self.numbers: list[Any] = []

    def draw(self, model: Model, draft_length: int, rng: Any) -> tuple[list[int], Any]:
        """Draw tokens by random numbers, which are kept for the verifier."""
        self.numbers = []
        tokens: list[int] = []
        for _ in range(draft_length):
            number = rng.random()
            row = model(tuple(tokens))
            edges = np.cumsum(row)[:-1]
            tokens.append(next((i for i, edge in enumerate(edges) if number < edge), len(edges)))
            self.numbers.append(number)
        rows = [model(tuple(tokens[:slot])) for slot in range(draft_length)]
        return tokens, np.array(rows)

    def verify(self, tokens: Any, draft: Any, target: Any, rng: Any) -> list[int]:
        """Accept by the numbers that drew the tokens."""
        kept: list[int] = []
        for slot, token in enumerate(tokens):
            if not self.numbers[slot] < target[slot][token] / draft[slot][token]:
                return [*kept, sample(rng, owed(target[slot], draft[slot]))]
            kept.append(token)
        return [*kept, sample(rng, target[-1])]


@dataclass(frozen=True)
class OneAddress:
    """A round's noise in which all coins have the address of slot 0."""

    noise: Noise

    def coins(self, slots: list[int], chances: Array) -> Array:
        """Toss all coins with the number of the first slot."""
        return self.noise.coins([0] * len(slots), chances)

    def draw(self, weights: Residual | Array) -> Array:
        """Draw with the usual number, unchanged."""
        return self.noise.draw(weights)

    def race(self, weights: Array, rows: Array, slots: Array) -> Array:
        """Race with the usual numbers, unchanged."""
        return self.noise.race(weights, rows, slots)


@dataclass(frozen=True)
class BlockAtOneAddress(Block):
    """The rule `block`, but with all coins of a round at the same address."""

    name: ClassVar[str] = "block, one address"

    def decide(self, trial: Trial, noise: Noise) -> tuple[Array, Array]:
        """Decide as the real rule does, with noise at one address."""
        return super().decide(trial, OneAddress(noise))


def coins_by_position(purpose: Purpose, first: Any, slot: Any) -> tuple[Any, Any]:
    """A wrong addressing: the two coins that `block` tosses for a slot are looked up at the slot's
    own position."""
    if purpose is Purpose.ACCEPT:
        return first + slot // 2, slot % 2
    return by_round(purpose, first, slot)


def drafts_by_position(purpose: Purpose, first: Any, slot: Any) -> tuple[Any, Any]:
    """A wrong addressing: the number that draws a token of a chain is looked up at the token's own
    position."""
    if purpose is Purpose.DRAFT:
        return first + slot, slot * 0
    return by_round(purpose, first, slot)


def owed_law(law: HostArray, drawn: HostArray) -> HostArray:
    """The residual (P - q)+ as a distribution, or P if it is empty."""
    part = owed(law, drawn)
    return np.asarray(part / part.sum())


def descend(
    tokens: Any,
    draft: Any,
    target: Any,
    rng: Any,
    tree: Tree,
    *,
    order: Callable[[tuple[int, ...]], Iterable[int]] = tuple,
    update: Callable[[HostArray, HostArray], HostArray] = owed_law,
    correction: Callable[[HostArray, HostArray], HostArray] = lambda law, left: left,
) -> list[int]:
    """The correct `siblings` rule; arguments can replace each of its parts."""
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
    """The correct `traversal` rule as it is usually written; arguments add two possible
    mistakes."""

    def visit(node: int, debt: float) -> tuple[int, HostArray] | None:
        """The node at which the path ends and the law there, or None if it ends above this node.

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
    """Try children in the order of p(x) / q(x) instead of the order in which they were drawn."""

    def gain(child: int) -> float:
        """p(x) / q(x) of a child."""
        token, before = tokens[child], tree.parents[child] + 1
        return float(target[before][token] / draft[child][token])

    return descend(
        tokens, draft, target, rng, tree, order=lambda nodes: sorted(nodes, key=gain, reverse=True)
    )


def sample_per_path(tokens: Any, draft: Any, target: Any, rng: Any, tree: Tree) -> list[int]:
    """Match every path with its own samples from the target, and keep the longest match."""
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
    """A drawer that draws children in the given way, but reports that each was drawn from the whole
    row."""

    def draw(model: Model, tree: Tree, rng: Any) -> tuple[list[int], Any]:
        """Draw the children of each node, and report the whole row for all of them."""
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
    """Drop sampled tokens of low probability, with everything that follows them."""
    tokens, rows = draw_plainly(model, tree, rng)
    sure = [rows[node][token] >= 0.3 for node, token in enumerate(tokens)]
    kept = [n for n in range(len(tree)) if all(sure[step] for step in tree.path(n))]
    return [tokens[node] for node in kept], rows[kept], tree.only(kept)
