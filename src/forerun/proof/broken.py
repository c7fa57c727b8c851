"""Broken verifiers and drawers, written the way they are usually written.

Most of them share with the correct rule `walk`, the left-to-right loop, or `block`; those for trees
share `descend`, the walk from the root down, or `traverse`, the one from the leaves up.  Each
changes one thing in it.  `mutants.py` lists them with what is wrong.
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
    """A token with chances in proportion to its weight."""
    total = weights.sum()
    return int(rng.choice(len(weights), p=weights / total))


def owed(target: HostArray, draft: HostArray) -> HostArray:
    """The residual (p - q)+, or p where nothing is left of it."""
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
    """The correct `ratio` rule, with each of its parts open to replacement."""
    kept: list[int] = []
    for slot, token in enumerate(tokens):
        if rng.random() < chance(target[slot], draft[slot], token):
            kept.append(token)
        else:
            return [*kept, sample(rng, correction(target[slot], draft[slot]))]
    return [*kept, sample(rng, target[bonus_row])]


def sharpened(row: HostArray, power: float) -> HostArray:
    """A row at a lower temperature; power: 1 / temperature."""
    weights = row**power
    return np.asarray(weights / weights.sum())


def draw_from(change: Callable[[HostArray], HostArray]) -> Drawer:
    """A drawer that draws from a changed law and reports the unchanged one."""

    def draw(model: Model, draft_length: int, rng: Any) -> tuple[list[int], Any]:
        """Draw each token after those before it."""
        tokens: list[int] = []
        for _ in range(draft_length):
            tokens.append(sample(rng, change(model(tuple(tokens)))))
        rows = [model(tuple(tokens[:slot])) for slot in range(draft_length)]
        return tokens, np.array(rows)

    return draw


def draw_confident(model: Model, draft_length: int, rng: Any) -> tuple[list[int], Any]:
    """Throw a sampled token away, and stop, when its own probability is low."""
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
    """A law with all mass on the likeliest token."""
    return np.asarray(np.eye(len(row))[int(np.argmax(row))])


def from_few_bits(row: HostArray) -> HostArray:
    """A law stored with three bits of mantissa, as a coarser stand-in for bfloat16."""
    mantissa, exponent = np.frexp(row)
    return sharpened(np.ldexp(np.round(mantissa * 8) / 8, exponent), 1.0)


def bare_target(tokens: Any, draft: Any, target: Any, rng: Any) -> list[int]:
    """Accept with chance p(x) instead of p(x) / q(x), and correct by p."""
    return walk(tokens, draft, target, rng, lambda p, q, x: p[x], lambda p, q: p)


def first_unchecked(tokens: Any, draft: Any, target: Any, rng: Any) -> list[int]:
    """Keep the first token whatever its chance is."""
    if not len(tokens):
        return walk(tokens, draft, target, rng)
    return [int(tokens[0]), *walk(tokens[1:], draft[1:], target[1:], rng)]


def off_by_one(tokens: Any, draft: Any, target: Any, rng: Any) -> list[int]:
    """Judge every slot by the row after it."""
    return walk(tokens, draft, np.concatenate([target[1:], target[-1:]]), rng)


def bonus_after_refusal(tokens: Any, draft: Any, target: Any, rng: Any) -> list[int]:
    """Take K emitted tokens for K accepted ones, so that a refusal in the last slot gets a bonus
    too."""
    emitted = walk(tokens, draft, target[:-1], rng) if len(tokens) else []
    kept = emitted[: len(tokens)]
    return [*kept, sample(rng, target[-1])] if len(kept) == len(tokens) else kept


def stale_rows(tokens: Any, draft: Any, target: Any, rng: Any) -> list[int]:
    """Judge every slot by the row before the draft."""
    return walk(tokens, draft, np.repeat(target[:1], len(target), axis=0), rng)


def one_coin(tokens: Any, draft: Any, target: Any, rng: Any) -> list[int]:
    """Judge all slots by one number."""
    coin = rng.random()
    kept: list[int] = []
    for slot, token in enumerate(tokens):
        if not coin < target[slot][token] / draft[slot][token]:
            return [*kept, sample(rng, owed(target[slot], draft[slot]))]
        kept.append(token)
    return [*kept, sample(rng, target[-1])]


def argmax_correction(tokens: Any, draft: Any, target: Any, rng: Any) -> list[int]:
    """Correct a refused token by the likeliest token of the residual."""
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
    """Give the ids past the vocabulary's end a share, as padded rows do."""
    pad = np.full((len(target), 1), 0.05)
    return walk(tokens, np.pad(draft, ((0, 0), (0, 1))), np.concatenate([target, pad], axis=1), rng)


def top_children_as_sampled(tokens: Any, draft: Any, target: Any, rng: Any) -> list[int]:
    """Judge the likeliest children as if they had been drawn."""
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
    """Sample and match by a race whose noise has 2 bits and can be exactly 0."""
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
    """Block verification as it is usually written, left to right, with its usual mistakes."""
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
    """A verifier in which the number that drew a token also decides its acceptance."""

    def __init__(self) -> None:
        """Begins without a number to share."""
        self.numbers: list[Any] = []

    def draw(self, model: Model, draft_length: int, rng: Any) -> tuple[list[int], Any]:
        """Draw by numbers that are kept for the verifier."""
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
    """A round's noise in which every coin lies at slot 0."""

    noise: Noise

    def coins(self, slots: list[int], chances: Array) -> Array:
        """Toss coins that all lie at the first slot."""
        return self.noise.coins([0] * len(slots), chances)

    def draw(self, weights: Residual | Array) -> Array:
        """Draw with the usual number."""
        return self.noise.draw(weights)

    def race(self, weights: Array, rows: Array, slots: Array) -> Array:
        """Race with the usual numbers."""
        return self.noise.race(weights, rows, slots)


@dataclass(frozen=True)
class BlockAtOneAddress(Block):
    """`block` that asks for every coin of a round at the same address."""

    name: ClassVar[str] = "block, one address"

    def decide(self, trial: Trial, noise: Noise) -> tuple[Array, Array]:
        """Decide like the rule that ships, but with noise at one address."""
        return super().decide(trial, OneAddress(noise))


def coins_by_position(purpose: Purpose, first: Any, slot: Any) -> tuple[Any, Any]:
    """The two coins that `block` tosses for a slot, looked up at the slot's own position."""
    if purpose is Purpose.ACCEPT:
        return first + slot // 2, slot % 2
    return by_round(purpose, first, slot)


def drafts_by_position(purpose: Purpose, first: Any, slot: Any) -> tuple[Any, Any]:
    """The number that draws a token of a chain, looked up at the token's own position."""
    if purpose is Purpose.DRAFT:
        return first + slot, slot * 0
    return by_round(purpose, first, slot)


def owed_law(law: HostArray, drawn: HostArray) -> HostArray:
    """The residual (P - q)+ as a law, or P where nothing is left of it."""
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
    """Try children by how much likelier the target finds them than the drafter, not in the order in
    which they were drawn."""

    def gain(child: int) -> float:
        """p(x) / q(x) of a child."""
        token, before = tokens[child], tree.parents[child] + 1
        return float(target[before][token] / draft[child][token])

    return descend(
        tokens, draft, target, rng, tree, order=lambda nodes: sorted(nodes, key=gain, reverse=True)
    )


def sample_per_path(tokens: Any, draft: Any, target: Any, rng: Any, tree: Tree) -> list[int]:
    """Match every path against target samples of its own, and keep the longest match."""
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
    """A drawer that draws children in one way, and reports that each was drawn from the whole
    row."""

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
