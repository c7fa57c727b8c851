"""A function as a model scores exactly what the function says."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from forerun.base.errors import InputError
from forerun.models import FunctionModel, LanguageModel

VOCAB_SIZE = 7


def last_law(ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """A law (V,) that depends on the whole text, with an impossible token."""
    weights = 1.0 + (np.arange(VOCAB_SIZE) * (1 + ids @ np.arange(1, len(ids) + 1))) % 5
    weights[int(ids[-1]) % VOCAB_SIZE] = 0.0
    return weights / weights.sum()


def all_laws(ids: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.stack([last_law(ids[: end + 1]) for end in range(len(ids))])


def expected(text: list[int], num_logits: int) -> NDArray[np.float64]:
    with np.errstate(divide="ignore"):
        return np.log(all_laws(np.array(text)))[-num_logits:]


@pytest.mark.parametrize("function", [last_law, all_laws])
def test_rows_are_the_logarithm_of_the_law(function: object) -> None:
    model = FunctionModel(function)  # type: ignore[arg-type]
    assert isinstance(model, LanguageModel)
    assert model.vocab_size == VOCAB_SIZE
    state = model.start(3, 16)
    texts = [[1, 2, 3, 4], [6], [0, 5, 2]]
    counts = [3, 1, 2]
    logits = model.score(state, [2, 0, 1], texts, counts)
    assert logits.shape == (3, 3, VOCAB_SIZE)
    for index, (text, count) in enumerate(zip(texts, counts, strict=True)):
        np.testing.assert_array_equal(logits[index, :count], expected(text, count))
    model.commit(state, [2, 0, 1], [4, 1, 1])
    model.release(state, 2)
    assert state.lengths == [0, 0, 0]


def test_a_function_of_the_last_law_is_called_once_per_position() -> None:
    calls: list[int] = []

    def counted(ids: NDArray[np.int64]) -> NDArray[np.float64]:
        calls.append(len(ids))
        return last_law(ids)

    model = FunctionModel(counted, vocab_size=VOCAB_SIZE)
    model.score(model.start(1, 8), [0], [[1, 2, 3, 4, 5]], [3])
    assert sorted(calls) == [3, 4, 5]


def test_logits_pass_through() -> None:
    model = FunctionModel(lambda ids: 10.0 + np.arange(4) * len(ids), logits=True)
    logits = model.score(model.start(1, 8), [0], [[1, 2]], [2])
    np.testing.assert_array_equal(logits[0], [10 + np.arange(4.0), 10 + 2 * np.arange(4.0)])


def test_results_of_no_meaning_are_refused() -> None:
    with pytest.raises(InputError, match=r"shape \(1, 1, 3\).*batch axis"):
        FunctionModel(lambda ids: np.ones((1, 1, 3)))
    negative = FunctionModel(lambda ids: np.array([2.0, -1.0]))
    with pytest.raises(InputError, match="logits=True"):
        negative.score(negative.start(1, 4), [0], [[1]], [1])
    wide = FunctionModel(lambda ids: np.full(3, 1 / 3), vocab_size=2)
    with pytest.raises(InputError, match="2 numbers per token"):
        wide.score(wide.start(1, 4), [0], [[1]], [1])
