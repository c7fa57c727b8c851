"""Trees: what follows from the parents alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import forerun as fr
from forerun.trees.tree import ROOT, Tree

FORK = Tree((-1, -1, 0, 0, 1, 3))


def test_everything_follows_from_the_parents() -> None:
    assert len(FORK) == 6
    assert FORK.depths == (0, 0, 1, 1, 1, 2)
    assert FORK.height == 3
    assert FORK.children == ((2, 3), (4,), (), (5,), (), (), (0, 1))
    assert FORK.children[ROOT] == (0, 1)
    assert FORK.leaves == (2, 4, 5)
    assert FORK.path(5) == (0, 3, 5)
    assert FORK.path(ROOT) == ()
    assert not FORK.is_chain


def test_what_a_node_may_see_is_its_own_path() -> None:
    for node in range(len(FORK)):
        assert tuple(np.flatnonzero(FORK.ancestors[node])) == FORK.path(node)


def test_children_first_ends_with_the_text() -> None:
    assert FORK.children_first == (2, 5, 3, 0, 4, 1, ROOT)
    assert Tree.chain(3).children_first == (2, 1, 0, ROOT)
    assert Tree.chain(0).children_first == (ROOT,)


def test_a_chain_is_a_tree() -> None:
    chain = Tree.chain(3)
    assert chain.parents == (-1, 0, 1)
    assert chain.is_chain
    assert chain.height == 3
    assert Tree.chain(0).is_chain
    assert Tree.chain(0).height == 0


def test_trees_by_branching() -> None:
    assert Tree.of_branching((2, 2)).parents == (-1, -1, 0, 0, 1, 1)
    assert Tree.of_branching((3, 1, 1)).leaves == (6, 7, 8)
    assert Tree.of_branching(()) == Tree.chain(0)
    assert Tree.of_branching(np.array([2, 1])) == Tree((-1, -1, 0, 1))  # type: ignore[arg-type]


@pytest.mark.parametrize("branching", ["2,2", (0, 2), (2, 0), (2, -1), (1.5,), 3])
def test_what_is_no_branching(branching: Any) -> None:
    with pytest.raises(fr.InputError, match=r"how many children.*Tree.of_branching\(\(2, 2\)\)"):
        Tree.of_branching(branching)


@pytest.mark.parametrize("parents", ["abc", 3, None, (-1, 0.5), np.array([-1.0, 0.0])])
def test_what_is_no_tree(parents: Any) -> None:
    with pytest.raises(fr.InputError, match=r"parents of its nodes.*Tree.chain\(3\)"):
        Tree(parents)


@pytest.mark.parametrize("length", ["3", 2.0, None, [3], 10**19])
def test_what_is_no_length_of_a_chain(length: Any) -> None:
    with pytest.raises(fr.InputError, match=r"A chain has .*Tree.chain\(3\)"):
        Tree.chain(length)


def test_beginnings_and_parts() -> None:
    assert FORK.first(4) == Tree((-1, -1, 0, 0))
    assert FORK.only([0, 3, 5]) == Tree.chain(3)
    assert FORK.only([]) == Tree.chain(0)


@pytest.mark.parametrize("nodes", [[2], [0, 5], [3, 0], [0, 0]])
def test_parts_that_hang_in_the_air(nodes: list[int]) -> None:
    with pytest.raises(fr.InputError, match="ascending order and have their parents"):
        FORK.only(nodes)


@pytest.mark.parametrize(("parents", "node"), [((0,), 0), ((-1, 1), 1), ((-1, -2), 1)])
def test_a_parent_must_be_an_earlier_node(parents: tuple[int, ...], node: int) -> None:
    with pytest.raises(fr.InputError, match=f"parent of node {node} is not an earlier node"):
        Tree(parents)
