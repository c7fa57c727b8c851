"""The cases on which a verifier is tested; each exposes a different kind of bug.

Rows differ from position to position and depend on what was emitted (so rows off by one show), some
tokens are impossible, target and draft laws are equal, disjoint or point masses, and the number of
draft tokens changes from round to round.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from forerun.base.arrays import HostArray
from forerun.proof.law import Model, Prefix, Shapes
from forerun.trees.sibling_laws import Children
from forerun.trees.tree import Tree

EVERY_WAY = tuple(how.value for how in Children)
"""All ways of drawing siblings, by name."""


@dataclass(frozen=True)
class Case:
    """A target and a drafter on a small vocabulary, and how many tokens of text to compare."""

    name: str
    vocab_size: int
    target: Model
    draft: Model
    draft_length: Shapes
    length: int  # tokens compared jointly; more than K + 1 means several rounds
    sampled: bool = False  # part of the smaller set for code that can only be sampled
    ways: tuple[str, ...] = ("sampled", "point")  # how rules have it drawn


def draft_lengths(case: Case) -> set[int]:
    """The numbers of draft tokens that occur in a case."""
    shapes = case.draft_length
    every = [shapes((0,) * n) for n in range(case.length)] if callable(shapes) else [shapes]
    return {len(shape) if isinstance(shape, Tree) else shape for shape in every}


def contextual(vocab_size: int, seed: int, *, zeros: float = 0.0, sharpness: float = 1.0) -> Model:
    """A random model whose row depends on the whole prefix. zeros: the share of impossible
    tokens."""

    def row(prefix: Prefix) -> HostArray:
        """The row for a prefix, made from the prefix and the seed."""
        rng = np.random.default_rng([seed, vocab_size, *[token + 1 for token in prefix]])
        weights = rng.gamma(1.0, size=vocab_size) ** sharpness + 1e-3
        dropped = rng.random(vocab_size) < zeros
        dropped[rng.integers(vocab_size)] = False
        weights[dropped] = 0.0
        return np.asarray(weights / weights.sum())

    return _remember(row)


def mixed(first: Model, second: Model, share: float) -> Model:
    """A model whose rows are share * first + (1 - share) * second."""
    return _remember(lambda prefix: share * first(prefix) + (1 - share) * second(prefix))


def restricted(model: Model, parity: int) -> Model:
    """The model restricted to tokens of one parity; models of different parity have no token in
    common."""

    def row(prefix: Prefix) -> HostArray:
        """The row of the model on tokens of this parity, normalised."""
        weights = model(prefix) * (np.arange(len(model(()))) % 2 == parity)
        return np.asarray(weights / weights.sum())

    return _remember(row)


def certain(model: Model) -> Model:
    """A model with all probability on another model's likeliest token."""
    return _remember(lambda prefix: np.eye(len(model(())))[int(np.argmax(model(prefix)))])


def _remember(model: Model) -> Model:
    """The same model, with each row computed only once."""
    known: dict[Prefix, HostArray] = {}

    def row(prefix: Prefix) -> HostArray:
        """The row of a prefix, computed when it is first needed."""
        if prefix not in known:
            known[prefix] = model(prefix)
        return known[prefix]

    return row


def standard_cases(seed: int = 0) -> Iterator[Case]:
    """The cases that every certificate covers."""
    p3, q3 = contextual(3, seed), contextual(3, seed + 1)
    p4, q4 = contextual(4, seed + 2), contextual(4, seed + 3)
    sparse_p, sparse_q = contextual(4, seed + 4, zeros=0.4), contextual(4, seed + 5, zeros=0.4)
    sharp = contextual(3, seed + 6, sharpness=4.0)
    yield Case("no draft", 3, p3, q3, 0, 2, sampled=True)
    yield Case("one draft token", 4, p4, q4, 1, 2)
    yield Case("context-dependent rows", 3, p3, q3, 2, 3, sampled=True)
    yield Case("longer draft", 2, contextual(2, seed), contextual(2, seed + 1), 4, 5)
    yield Case("good drafter", 3, p3, mixed(p3, q3, 0.7), 3, 4, sampled=True)
    yield Case("impossible tokens", 4, sparse_p, mixed(sparse_q, p4, 0.8), 2, 3, sampled=True)
    yield Case("drafter lacks tokens", 4, p4, sparse_q, 2, 3, sampled=True)
    yield Case("drafter equals target", 3, p3, p3, 2, 3)
    yield Case("nothing in common", 4, restricted(p4, 0), restricted(q4, 1), 2, 3, sampled=True)
    yield Case("certain target", 3, certain(p3), q3, 2, 3, sampled=True)
    yield Case("certain drafter", 3, p3, certain(q3), 2, 3)
    yield Case("sharp laws", 3, sharp, mixed(sharp, q3, 0.5), 2, 3)
    yield Case("several rounds", 3, p3, mixed(p3, q3, 0.5), 1, 4, sampled=True)
    yield Case("K changes", 3, p3, mixed(p3, q3, 0.5), lambda prefix: 2 - len(prefix) % 3, 4)


def edge_cases(seed: int = 0) -> Iterator[Case]:
    """Cases that small ones do not cover: long drafts, large vocabularies, ties.

    Only the first round drafts. In large cases some positions are certain, so that few texts are
    possible. Long drafts are uncertain at their end, where short drafts do not reach; for eight
    tokens, two cases together leave every position uncertain.
    """
    p2, q2 = contextual(2, seed + 20), contextual(2, seed + 21)
    p4, q4 = contextual(4, seed + 22), contextual(4, seed + 23)
    wide_p, wide_q = contextual(33, seed + 24), contextual(33, seed + 25)

    def sure_at(places: Iterable[int], model: Model) -> Model:
        """A model that is certain at these positions, and there equals target and drafter."""
        sure = np.array([1.0, 0.0])
        return _remember(lambda prefix: sure if len(prefix) in places else model(prefix))

    likeliest = int(np.argmax(wide_q(())))

    def wide_at(place: int, model: Model) -> Model:
        """A model that is uncertain at one position, and after it only if the drafter's likeliest
        token came there."""

        def row(prefix: Prefix) -> HostArray:
            come = prefix[place:]
            if len(prefix) < place or (come and come != (likeliest,)):
                return np.asarray(np.eye(33)[5 * sum(prefix) % 33])
            return model(come)

        return _remember(row)

    def tied(*weights: float) -> Model:
        """A model whose rows are permutations of these weights, in another order after each
        token."""
        row = np.array(weights) / sum(weights)
        return _remember(lambda prefix: np.roll(row, sum(prefix) + len(prefix)))

    def case(
        name: str, size: int, target: Model, draft: Model, count: int, length: int,
        sampled: bool = True,
    ) -> Case:  # fmt: skip
        """A case in which only the first round drafts."""
        lengths = lambda prefix: 0 if prefix else count  # noqa: E731
        return Case(name, size, target, draft, lengths, length, sampled)

    def long(name: str, count: int, sure: Iterable[int], sampled: bool = True) -> Case:
        """A case with a vocabulary of two tokens that is certain at the positions `sure`."""
        return case(name, 2, sure_at(sure, p2), sure_at(sure, q2), count, count + 1, sampled)

    flat = tied(1, 1, 1, 1)
    yield long("five draft tokens", 5, (1, 2), sampled=False)
    yield long("six draft tokens", 6, (0, 2, 3), sampled=False)
    yield long("seven draft tokens", 7, (0, 1, 3, 4), sampled=False)
    yield long("eight draft tokens", 8, (1, 2, 6, 8))
    yield long("eight draft tokens, in turn", 8, (0, 3, 4, 5, 7))
    yield case("large vocabulary", 33, wide_at(0, wide_p), wide_at(0, wide_q), 1, 2)
    yield case("large vocabulary, later", 33, wide_at(1, wide_p), wide_at(1, wide_q), 2, 3)
    yield case("ties", 4, tied(3, 3, 1, 2), tied(3, 2, 3, 1), 2, 3)
    yield case("uniform target", 4, flat, q4, 2, 3)
    yield case("uniform drafter", 4, p4, flat, 2, 3)


def tree_cases(seed: int = 0) -> Iterator[Case]:
    """The cases for rules that judge trees, with siblings drawn in every way."""

    def case(
        name: str, size: int, target: Model, draft: Model, shapes: Shapes, length: int
    ) -> Case:
        """A case with siblings drawn in every way."""
        return Case(name, size, target, draft, shapes, length, ways=EVERY_WAY)

    p2, q2 = contextual(2, seed + 10), contextual(2, seed + 11)
    p3, q3 = contextual(3, seed + 103), contextual(3, seed + 203)  # far apart
    p4, q4 = contextual(4, seed + 103), contextual(4, seed + 203)
    sparse_p, sparse_q = contextual(3, seed + 16, zeros=0.4), contextual(3, seed + 17, zeros=0.4)
    fair = mixed(p3, q3, 0.5)
    pair, fork = Tree.of_branching((2,)), Tree.of_branching((2, 1))
    lopsided = Tree((-1, -1, 0, 0))
    yield case("tree (3)", 4, p4, q4, Tree.of_branching((3,)), 2)
    yield case("tree (2, 2)", 3, p3, fair, once(Tree.of_branching((2, 2))), 3)
    yield case("tree (3, 1, 1)", 2, p2, q2, once(Tree.of_branching((3, 1, 1))), 4)
    yield case("tree, unequal branches", 3, p3, q3, once(lopsided), 3)
    yield case("tree, impossible tokens", 3, sparse_p, mixed(sparse_q, p3, 0.8), once(fork), 3)
    yield case("tree, drafter lacks tokens", 3, p3, sparse_q, once(fork), 3)
    yield case("tree, equal laws", 3, p3, p3, once(fork), 3)
    yield case("tree, nothing in common", 4, restricted(p4, 0), restricted(q4, 1), once(fork), 3)
    yield case("tree, certain target", 3, certain(p3), q3, once(fork), 3)
    yield case("tree, certain drafter", 3, p3, certain(q3), once(fork), 3)
    yield case("tree, several rounds", 3, p3, fair, pair, 4)
    changing = (fork, Tree.chain(2), pair)
    yield case("tree changes", 2, p2, q2, lambda prefix: changing[len(prefix) % 3], 4)


def once(tree: Tree) -> Shapes:
    """The tree in the first round, then no drafts."""
    return lambda prefix: Tree.chain(0) if prefix else tree
