"""Children of a node: each law is the one that its token follows, its earlier siblings given."""

from __future__ import annotations

import numpy as np
import pytest

from cases import for_all
from forerun.trees.sibling_laws import Children, draw_children, next_law

LAW = np.array([0.1, 0.4, 0.2, 0.3])


def test_independent_children_have_the_whole_law() -> None:
    assert np.array_equal(next_law(Children.INDEPENDENT, LAW, [1, 1], 4), LAW)


def test_without_replacement_what_was_drawn_is_gone() -> None:
    found = next_law(Children.WITHOUT_REPLACEMENT, LAW, [1, 3], 3)
    assert found == pytest.approx([1 / 3, 0, 2 / 3, 0])


def test_greedy_plus_one_draws_outside_the_likeliest_first() -> None:
    laws = [next_law(Children.GREEDY_PLUS_ONE, LAW, taken, 3) for taken in ([], [2], [2, 1])]
    assert laws[0] == pytest.approx([1 / 3, 0, 2 / 3, 0])
    assert laws[1].tolist() == [0, 1, 0, 0]
    assert laws[2].tolist() == [0, 0, 0, 1]
    assert next_law(Children.GREEDY_PLUS_ONE, LAW, [], 1) == pytest.approx(LAW)


def test_the_likeliest_in_order_the_lowest_id_on_ties() -> None:
    even = np.full(4, 0.25)
    laws = [next_law(Children.LIKELIEST, even, list(range(n)), 3) for n in range(3)]
    assert [int(np.argmax(law)) for law in laws] == [0, 1, 2]


@for_all("how", list(Children))
@for_all("law", [LAW, np.array([0.0, 1.0, 0.0, 0.0]), np.array([0.5, 0.5, 0, 0])])
@for_all("count", [1, 2, 4, 6])
def test_a_law_is_a_law_even_where_tokens_run_out(
    how: Children, law: np.ndarray, count: int
) -> None:
    """And it has a place for the token that is drawn from it."""
    rng = np.random.default_rng(count)
    tokens, laws = draw_children(how, law, count, lambda row: int(rng.choice(4, p=row)))
    assert laws.shape == (count, 4)
    assert laws.sum(axis=1) == pytest.approx(np.ones(count))
    assert (laws[np.arange(count), tokens] > 0).all()
    if how is not Children.INDEPENDENT and count <= 4:
        assert len(set(tokens)) == count


def test_the_order_of_a_draw_without_replacement() -> None:
    """Pairs come with q(x) q(y) / (1 - q(x)), within what 10,000 draws allow (1e-9, Hoeffding)."""
    rng, count = np.random.default_rng(5), 10_000
    found = np.zeros((4, 4))
    for _ in range(count):
        (x, y), _ = draw_children(
            Children.WITHOUT_REPLACEMENT, LAW, 2, lambda row: int(rng.choice(4, p=row))
        )
        found[x, y] += 1 / count
    wanted = LAW[:, None] * LAW[None, :] / (1 - LAW[:, None]) * (1 - np.eye(4))
    assert np.abs(found - wanted).max() < np.sqrt(np.log(2 * 16e9) / (2 * count))
