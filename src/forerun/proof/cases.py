"""The cases a verifier is tested on; each exposes a different kind of bug.

Rows differ from position to position and depend on what was emitted (a row off by one shows),
some tokens are impossible, laws coincide, have nothing in common, or are point masses, and the
number of draft tokens changes from round to round.
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
    """A target and a drafter on a small vocabulary, and how many tokens to compare."""

    name: str
    vocab_size: int
    target: Model
    draft: Model
    draft_length: Shapes
    length: int  # tokens compared jointly; more than K + 1 means several rounds
    sampled: bool = False  # part of the smaller set for code that can only be sampled
    ways: tuple[str, ...] = ("sampled", "point")  # how rules have it drawn


def draft_lengths(case: Case) -> set[int]:
    """How many tokens the drafts of the case have."""
    shapes = case.draft_length
    every = [shapes((0,) * n) for n in range(case.length)] if callable(shapes) else [shapes]
    return {len(shape) if isinstance(shape, Tree) else shape for shape in every}


def contextual(vocab_size: int, seed: int, *, zeros: float = 0.0, sharpness: float = 1.0) -> Model:
    """A random model whose row depends on the whole prefix; `zeros` is the share of zeros."""

    def row(prefix: Prefix) -> HostArray:
        """A row that the prefix and the seed decide on."""
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
    """The model on the tokens of one parity only: two of them have nothing in common."""

    def row(prefix: Prefix) -> HostArray:
        """The row on tokens of one parity, made to sum to 1."""
        weights = model(prefix) * (np.arange(len(model(()))) % 2 == parity)
        return np.asarray(weights / weights.sum())

    return _remember(row)


def certain(model: Model) -> Model:
    """A model with all mass on the likeliest token of another model."""
    return _remember(lambda prefix: np.eye(len(model(())))[int(np.argmax(model(prefix)))])


def _remember(model: Model) -> Model:
    """The model with every row made only once."""
    known: dict[Prefix, HostArray] = {}

    def row(prefix: Prefix) -> HostArray:
        """The row of a prefix, made when it is first asked for."""
        if prefix not in known:
            known[prefix] = model(prefix)
        return known[prefix]

    return row


def standard_cases(seed: int = 0) -> Iterator[Case]:
    """The cases every certificate covers."""
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
    """Where code goes wrong that is right on small cases: long drafts, large vocabularies, ties.

    Plain decoding follows the first round.  Rows of large cases are certain at some positions, so
    that few texts are possible.  Long drafts are uncertain at their end, where short ones do not
    reach; of eight tokens two cases leave every position uncertain in turn.
    """
    p2, q2 = contextual(2, seed + 20), contextual(2, seed + 21)
    p4, q4 = contextual(4, seed + 22), contextual(4, seed + 23)
    wide_p, wide_q = contextual(33, seed + 24), contextual(33, seed + 25)

    def sure_at(places: Iterable[int], model: Model) -> Model:
        """A model that is certain at these positions, where target and drafter agree."""
        sure = np.array([1.0, 0.0])
        return _remember(lambda prefix: sure if len(prefix) in places else model(prefix))

    likeliest = int(np.argmax(wide_q(())))

    def wide_at(place: int, model: Model) -> Model:
        """A model that is uncertain at one position, and after it where the drafter's likeliest
        token came."""

        def row(prefix: Prefix) -> HostArray:
            come = prefix[place:]
            if len(prefix) < place or (come and come != (likeliest,)):
                return np.asarray(np.eye(33)[5 * sum(prefix) % 33])
            return model(come)

        return _remember(row)

    def tied(*weights: float) -> Model:
        """A model of rows with equal probabilities, in another order after each token."""
        row = np.array(weights) / sum(weights)
        return _remember(lambda prefix: np.roll(row, sum(prefix) + len(prefix)))

    def case(
        name: str, size: int, target: Model, draft: Model, count: int, length: int,
        sampled: bool = True,
    ) -> Case:  # fmt: skip
        """A case whose first round drafts and whose others do not."""
        lengths = lambda prefix: 0 if prefix else count  # noqa: E731
        return Case(name, size, target, draft, lengths, length, sampled)

    def long(name: str, count: int, sure: Iterable[int], sampled: bool = True) -> Case:
        """A case of two tokens, certain at some positions."""
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
    """The cases of rules that judge trees, each in every way that siblings can be drawn."""

    def case(
        name: str, size: int, target: Model, draft: Model, shapes: Shapes, length: int
    ) -> Case:
        """A case in every way that siblings can be drawn."""
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
    """A tree in the first round, then plain decoding."""
    return lambda prefix: Tree.chain(0) if prefix else tree
