"""The table model is its table."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest

from forerun.base.errors import InputError
from forerun.models import LanguageModel, TableModel


def test_the_law_is_the_row_of_the_last_tokens() -> None:
    model = TableModel.random(vocab_size=3, order=2, seed=0)
    assert len(model.table) == 1 + 3 + 9
    assert model.probs([]).shape == (3,)
    np.testing.assert_array_equal(model.probs([2]), model.table[(2,)])
    np.testing.assert_array_equal(model.probs([0, 1, 2, 0]), model.table[(2, 0)])
    assert model.probs([]).dtype == np.float64


def test_order_zero_ignores_the_text() -> None:
    model = TableModel(2, 0, {(): [0.25, 0.75]})
    np.testing.assert_array_equal(model.probs([1, 0, 1]), [0.25, 0.75])


def test_every_context_has_its_own_law() -> None:
    model = TableModel.random(vocab_size=4, order=2, seed=5, zeros=0.3)
    laws = list(model.table.values())
    assert all(not np.array_equal(a, b) for a, b in combinations(laws, 2))
    assert any((law == 0).any() for law in laws)
    assert all(abs(law.sum() - 1) < 1e-12 for law in laws)


def test_one_seed_one_table() -> None:
    one, same, other = (TableModel.random(3, 1, seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.probs([2]), same.probs([2]))
    assert not np.array_equal(one.probs([2]), other.probs([2]))


def test_scores_are_the_logarithms_of_the_laws() -> None:
    model = TableModel.random(vocab_size=3, order=2, seed=3, zeros=0.3)
    assert isinstance(model, LanguageModel)
    for text in product(range(3), repeat=4):
        logits = model.score(model.start(1, 4), [0], [list(text)], [4])
        for end in range(1, 5):
            np.testing.assert_allclose(
                np.exp(logits[0, end - 1]), model.probs(text[:end]), rtol=1e-14
            )


def test_incomplete_and_unnormalised_tables_are_refused() -> None:
    with pytest.raises(InputError, match=r"no distribution for the context \(1,\)"):
        TableModel(2, 1, {(): [0.5, 0.5], (0,): [0.5, 0.5]})
    with pytest.raises(InputError, match="sum 1"):
        TableModel(2, 0, {(): [0.5, 0.6]})
