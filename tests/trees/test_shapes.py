"""Shapes: the heap against brute force, and profiles out of rounds."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest

import forerun as fr
from cases import for_all
from forerun.trees.shapes import best_nodes, best_tree, expected_tokens, measured_profile
from forerun.trees.tree import ROOT, Tree

PROFILE = (0.6, 0.15, 0.07, 0.04)


def every_tree(num_nodes: int) -> Iterator[Tree]:
    """All trees of so many nodes, parents first (some of them twice, under other numbers)."""
    for parents in itertools.product(*(range(ROOT, node) for node in range(num_nodes))):
        yield Tree(parents)


def by_dynamic_programming(profile: tuple[float, ...], num_nodes: int) -> float:
    """Sequoia's recursion over how many nodes each child in turn gets."""

    @cache
    def below(count: int) -> float:
        return 1 + share(count, 0)

    @cache
    def share(count: int, rank: int) -> float:
        if count == 0 or rank == len(profile):
            return 0.0
        return max(
            (profile[rank] * below(size - 1) if size else 0.0) + share(count - size, rank + 1)
            for size in range(count + 1)
        )

    return below(num_nodes)


@for_all("num_nodes", range(6))
@for_all("max_depth", [None, 1, 2])
def test_no_other_tree_keeps_more(num_nodes: int, max_depth: int | None) -> None:
    """Depth by depth other chances, so that no simple rule would do."""
    profile = np.array([[0.5, 0.2, 0.1], [0.8, 0.15, 0.05], [0.4, 0.3, 0.2]])
    found = best_tree(profile, num_nodes, max_depth)
    allowed = [t for t in every_tree(num_nodes) if max_depth is None or t.height <= max_depth]
    most = max(expected_tokens(tree, profile) for tree in allowed) if allowed else 1.0
    assert expected_tokens(found, profile) == pytest.approx(most, abs=1e-12)


@pytest.mark.parametrize("num_nodes", [1, 8, 16, 32, 64])
def test_it_is_worth_what_dynamic_programming_finds(num_nodes: int) -> None:
    found = expected_tokens(best_tree(PROFILE, num_nodes), PROFILE)
    assert found == pytest.approx(by_dynamic_programming(PROFILE, num_nodes), abs=1e-12)


def test_beginnings_are_best_too() -> None:
    """So a budget can cut a tree without anybody making another one."""
    tree = best_tree(PROFILE, 24)
    for count in range(25):
        assert tree.first(count) == best_tree(PROFILE, count)


def test_certain_children_make_a_chain_and_hopeless_ones_are_left_out() -> None:
    assert best_tree([1.0], 5).is_chain
    assert best_tree([0.9, 0.0], 4) == Tree.chain(4)
    assert best_tree([0.5, 0.5], 7, max_depth=1) == Tree((-1, -1))
    assert len(best_tree([0.0], 3)) == 0


def test_a_rise_is_taken_for_noise() -> None:
    assert best_tree([0.5, 0.1, 0.2], 6) == best_tree([0.5, 0.15, 0.15], 6)
    flat = expected_tokens(Tree.of_branching((3,)), [0.1, 0.2, 0.3])
    assert flat == pytest.approx(1.6)


def test_a_profile_out_of_rounds() -> None:
    """Children of a node that was not reached do not count, nor do those of other branches."""
    fork = Tree((-1, -1, 0, 1))
    rounds = [(fork, (0, 2)), (fork, (1,)), (fork, ()), (Tree.chain(1), (0,))]
    assert measured_profile(rounds) == pytest.approx(np.array([[3 / 6, 1 / 3]]))
    by_depth = measured_profile(rounds, by_depth=True)
    assert by_depth == pytest.approx(np.array([[2 / 4, 1 / 3], [1 / 2, 0]]))
    assert best_tree(by_depth, 3) == Tree((-1, -1, 0))


def test_the_profile_is_recovered_from_what_it_makes() -> None:
    """20,000 rounds; each estimate strays by 0.03 with probability 1e-9 at most (Hoeffding)."""
    rng, tree = np.random.default_rng(0), Tree.of_branching((3, 2))
    rounds = []
    for _ in range(20_000):
        path: list[int] = []
        while children := tree.children[path[-1] if path else ROOT]:
            chances = [*PROFILE[: len(children)], 1 - sum(PROFILE[: len(children)])]
            rank = int(rng.choice(len(chances), p=chances))
            if rank == len(children):
                break
            path.append(children[rank])
        rounds.append((tree, path))
    assert measured_profile(rounds)[0] == pytest.approx(PROFILE[:3], abs=0.03)
    mean = np.mean([len(path) + 1 for _, path in rounds])
    assert mean == pytest.approx(expected_tokens(tree, PROFILE), abs=0.05)


def test_the_best_nodes_of_a_larger_tree() -> None:
    parents, values = (-1, -1, 0, 0, 1, 2), (0.6, 0.3, 0.4, 0.1, 0.29, 0.4)
    assert best_nodes(values, parents, 4) == [0, 1, 2, 5]
    assert best_nodes(values, parents, 3) == [0, 2, 5]
    assert best_nodes(values, parents, 99) == list(range(6))
    assert best_nodes(values, parents, 0) == []


@for_all("seed", range(20))
def test_the_best_nodes_are_a_tree_whatever_the_values(seed: int) -> None:
    rng = np.random.default_rng(seed)
    parents = [int(rng.integers(-1, node)) for node in range(12)]
    for count in range(13):
        nodes = best_nodes(rng.random(12).tolist(), parents, count)
        assert len(Tree(tuple(parents)).only(nodes)) == count


@pytest.mark.parametrize("profile", [[0.7, 0.4], [-0.1], [], [[[0.5]]]])
def test_a_profile_that_is_none(profile: object) -> None:
    with pytest.raises(fr.InputError, match=r"sum to 1 at most.*measured_profile"):
        best_tree(profile, 4)  # type: ignore[arg-type]


def test_sizes_below_zero() -> None:
    with pytest.raises(fr.InputError, match=r"that small.*\(-1, None\).*from 0"):
        best_tree(PROFILE, -1)


def test_nothing_to_measure() -> None:
    with pytest.raises(fr.InputError, match="nothing to measure"):
        measured_profile([(Tree.chain(0), ())])
