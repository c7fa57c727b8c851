"""`match` on trees: whatever was grown and cut, the text is the one of plain sampling."""

from __future__ import annotations

import array_api_compat as compat
import numpy as np
import pytest

import forerun as fr
from forerun.noise import race as noise
from forerun.trees.shapes import best_nodes
from forerun.trees.tree import ROOT, Tree

XP = compat.array_namespace(np.empty(0))
SEEDS = range(12)
LENGTH, SIZE = 20, 300  # more tokens than one block of noise

rng = np.random.default_rng(21)
MODEL = rng.dirichlet(np.full(SIZE, 0.05), 40)  # by a hash of the last two tokens
GOOD = 0.75 * MODEL + 0.25 * rng.dirichlet(np.full(SIZE, 0.05), 40)

Text = list[int]


def row(table: np.ndarray, text: Text) -> np.ndarray:
    before = [7, 3, *text]
    return table[(5 * before[-2] + before[-1]) % len(table)]


def first_arrivals(text: Text, seed: int, count: int) -> Text:
    """The tokens that come in first in the drafter's race under the target's noise."""
    law, tokens = row(GOOD, text), np.arange(SIZE)[None]
    key = noise.seed_key(XP, [seed], None)
    times = noise.exponentials(XP, key, np.array([len(text)]), tokens)[0] / np.maximum(law, 1e-300)
    return np.argsort(times)[:count].tolist()


def anything(text: Text, seed: int, count: int) -> Text:
    """Tokens that were drawn from nothing in particular, some of them twice."""
    return rng.integers(0, SIZE, count).tolist()


def grown(text: Text, seed: int, guess: object, tree: Tree) -> list[int]:
    """Tokens for every node of a tree, the children of each by `guess`."""
    tokens = [0] * len(tree)
    for parent in (ROOT, *range(len(tree))):
        nodes = tree.children[parent]
        before = text + [tokens[node] for node in tree.path(parent)]
        for node, token in zip(nodes, guess(before, seed, len(nodes)), strict=True):  # type: ignore[operator]
            tokens[node] = token
    return tokens


def plain(seed: int) -> Text:
    text: Text = []
    while len(text) < LENGTH:
        law = row(MODEL, text)[None, None]
        text += fr.verify(fr.Draft.point([[]]), law, seed=seed, positions=[len(text)]).tokens()[0]
    return text


ALONE = {seed: plain(seed) for seed in SEEDS}


@pytest.mark.parametrize("pruned", [False, True])
@pytest.mark.parametrize("guess", [first_arrivals, anything])
def test_the_text_does_not_depend_on_the_tree(guess: object, pruned: bool) -> None:
    """Another random tree every round, cut at random or to its best nodes: no token may differ."""
    rounds = 0
    for seed in SEEDS:
        text: Text = []
        while len(text) < LENGTH:
            size = int(rng.integers(1, 14))
            tree = Tree(tuple(int(rng.integers(-1, min(node, 4))) for node in range(size)))
            tokens = grown(text, seed, guess, tree)
            if pruned:
                values = rng.random(size) if seed % 2 else np.array(tokens) / SIZE
                nodes = best_nodes(values.tolist(), tree.parents, int(rng.integers(0, size + 1)))
                tokens, tree = [tokens[node] for node in nodes], tree.only(nodes)
            paths = [
                text + [tokens[i] for i in tree.path(node)] for node in (ROOT, *range(len(tree)))
            ]
            verdict = fr.verify(
                fr.Draft.point([tokens], tree=tree),
                np.array([[row(MODEL, path) for path in paths]]),
                seed=seed,
                positions=[len(text)],
            )
            text += verdict.tokens()[0]
            rounds += 1
        assert text[:LENGTH] == ALONE[seed]
    if guess is first_arrivals:  # and the guesses did save rounds
        assert rounds < 0.75 * LENGTH * len(SEEDS)


def test_more_children_are_right_more_often() -> None:
    """One, two and four first arrivals after the same texts, each among the next."""
    hits = []
    for count in (1, 2, 4):
        kept = [
            fr.verify(
                fr.Draft.shared(
                    [first_arrivals(text[:at], seed, count)], tree=Tree.of_branching((count,))
                ),
                np.array([[row(MODEL, text[:at])] + [row(MODEL, [])] * count]),
                seed=seed,
                positions=[at],
            ).num_accepted[0]
            for seed, text in ALONE.items()
            for at in range(LENGTH)
        ]
        hits.append(float(np.mean(kept)))
    assert 0.4 < hits[0] < hits[1] < hits[2]
