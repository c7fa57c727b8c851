"""The joint law of whole texts when drafts are trees: every outcome of the real engine, listed."""

from __future__ import annotations

from typing import Any

import pytest
from test_joint_law import (
    DRAFT,
    OPTIONS,
    PAIR,
    PAIR_DRAFT,
    SPARSE,
    SPARSE_DRAFT,
    TARGET,
    distance,
    law_of,
    target_law,
)

from forerun import Sampling, Tree
from forerun.drafters import Guess, Model, NGram, Suffix, Turn
from forerun.models import TableModel
from forerun.trees.sibling_laws import Children

__all__ = ["law_of"]  # a fixture

RULES = ["siblings", "traversal"]
SHAPES = {
    "(2,)": Tree.of_branching((2,)),
    "(1, 2)": Tree.of_branching((1, 2)),
    "(2, 1)": Tree.of_branching((2, 1)),
    "uneven": Tree((-1, -1, 0)),
}


def cases() -> list[Any]:
    """Every way to draw children in every shape; the many outcomes of some are left to `slow`."""
    many = (Children.INDEPENDENT, Children.WITHOUT_REPLACEMENT)
    large = ("(1, 2)", "(2, 1)")  # "uneven" has a fork and a line too
    return [
        pytest.param(
            children,
            shape,
            marks=(pytest.mark.slow,) if shape in large and children in many else (),
            id=f"{children.value}-{shape}",
        )
        for children in Children
        for shape in SHAPES
    ]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("children", "shape"), cases())
def test_joint_law_is_the_targets(law_of: Any, rule: str, children: Children, shape: str) -> None:
    """Several rounds, a tree that is cut as the limit comes near, texts that end early."""
    drafter = Model(DRAFT, children=children)
    found = law_of(
        TARGET, drafter, rule=rule, tree=SHAPES[shape], max_new_tokens=3, sampling=Sampling()
    )
    assert distance(found, target_law(TARGET, 3)) < 1e-12


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    ("target", "draft"), [(PAIR, PAIR_DRAFT), (SPARSE, DRAFT), (TARGET, SPARSE_DRAFT)]
)
def test_two_levels_of_two(law_of: Any, rule: str, target: TableModel, draft: TableModel) -> None:
    drafter = Model(draft)
    found = law_of(
        target, drafter, rule=rule, tree=Tree.of_branching((2, 2)), max_new_tokens=3,
        sampling=Sampling(),
    )  # fmt: skip
    assert distance(found, target_law(target, 3)) < 1e-12


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("index", range(len(OPTIONS)))
def test_every_kind_of_option(law_of: Any, rule: str, index: int) -> None:
    how: dict[str, Any] = {"sampling": OPTIONS[index], "max_new_tokens": 3}
    plain = law_of(TARGET, None, **how)
    found = law_of(TARGET, Model(DRAFT), rule=rule, tree=SHAPES["(2,)"], **how)
    assert distance(found, plain) < 1e-12


@pytest.mark.parametrize("rule", [*RULES, "match"])
@pytest.mark.parametrize(
    "drafter", [NGram(min_n=1), Suffix(worth=0.01)], ids=lambda each: each.name
)
def test_point_drafters(law_of: Any, rule: str, drafter: Any) -> None:
    """Their trees are functions of the text, so a rule may take each child as a point mass."""
    found = law_of(
        TARGET, drafter, rule=rule, tree=Tree.of_branching((2, 1)), max_new_tokens=4,
        sampling=Sampling(),
    )  # fmt: skip
    assert distance(found, target_law(TARGET, 4)) < 1e-12


class LikelierFirst(Model):
    """Draws as it promises, and then puts the likelier child first: its order looks at tokens."""

    def propose(self, state: Any, turns: Any, *, shared_noise: bool) -> list[Guess]:
        return [
            self._sorted(guess, turn)
            for guess, turn in zip(
                super().propose(state, turns, shared_noise=shared_noise), turns, strict=True
            )
        ]

    def _sorted(self, guess: Guess, turn: Turn) -> Guess:
        if len(guess.tokens) != 2 or guess.probs is None:
            return guess
        order = sorted(range(2), key=lambda i: -guess.probs[0][guess.tokens[i]])
        return Guess([guess.tokens[i] for i in order], guess.drawn, guess.probs, guess.parents)


@pytest.mark.parametrize("rule", RULES)
def test_sorting_the_children_shows(law_of: Any, rule: str) -> None:
    """The tests above can fail."""
    drafter = LikelierFirst(DRAFT, children=Children.INDEPENDENT)
    found = law_of(
        TARGET, drafter, rule=rule, tree=SHAPES["(2,)"], max_new_tokens=2, sampling=Sampling()
    )
    assert distance(found, target_law(TARGET, 2)) > 1e-3
