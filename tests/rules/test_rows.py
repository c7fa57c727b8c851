"""Every kind of row is the same law, read by entry or whole, and checked where it is read."""

from __future__ import annotations

import numpy as np
import pytest

from forerun.base.arrays import to_numpy
from forerun.base.errors import InputError
from forerun.rules.rows import Dense, Logits, Points, Rows, SparseRows
from libraries import Library

PROBS = np.array(
    [[[0.5, 0.25, 0.25, 0.0], [0.0, 1.0, 0.0, 0.0]], [[0.25] * 4, [0.125, 0.375, 0.0, 0.5]]]
)  # (2, 2, 4)
TOKENS = np.array([[0, 1], [3, 2]])
USED = np.array([[True, True], [True, False]])


def views(lib: Library) -> dict[str, Rows]:
    """The same law three ways."""
    ids = np.broadcast_to(np.arange(4)[::-1], PROBS.shape)
    with np.errstate(divide="ignore"):
        logits = np.log(PROBS) + 7
    return {
        "dense": Dense(lib.xp, lib.array(PROBS), "probs"),
        "logits": Logits(lib.xp, lib.array(logits), 1.0, "logits"),
        "sparse": SparseRows(lib.xp, lib.array(ids), lib.array(PROBS[..., ::-1]), 4, "probs"),
    }


@pytest.mark.parametrize("kind", ["dense", "logits", "sparse"])
def test_entries_and_rows(lib: Library, kind: str) -> None:
    rows = views(lib)[kind]
    found = to_numpy(rows.at(lib.array(TOKENS), lib.array(USED)))
    assert found == pytest.approx(np.array([[0.5, 1.0], [0.25, 0.0]]), abs=1e-6)
    found = to_numpy(rows.take(lib.array([1, 0, 1]), lib.array([1, 0, 0])))
    assert found == pytest.approx(np.stack([PROBS[1, 1], PROBS[0, 0], PROBS[1, 0]]), abs=1e-6)
    found = to_numpy(rows.take(lib.array([1]), lib.array([1])))
    assert found == pytest.approx(PROBS[1:, 1], abs=1e-6)


def test_point_masses(lib: Library) -> None:
    rows = Points(lib.xp, lib.array(TOKENS), 4, lib.array(PROBS).dtype)
    assert to_numpy(rows.at(lib.array(TOKENS), lib.array(USED))).tolist() == [[1, 1], [1, 0]]
    assert to_numpy(rows.take(lib.array([1]), lib.array([0]))).tolist() == [[0, 0, 0, 1]]


@pytest.mark.parametrize("kind", ["dense", "logits"])
def test_greedy_rows_put_all_on_the_largest_and_ties_on_the_lowest(lib: Library, kind: str) -> None:
    tied = lib.array(np.array([[[0.1, 0.45, 0.45], [0.6, 0.2, 0.2]]]))
    rows: Rows = (
        Dense(lib.xp, tied, "p", greedy=True) if kind == "dense" else Logits(lib.xp, tied, 0.0, "p")
    )
    assert to_numpy(rows.take(lib.array([0, 0]), lib.array([0, 1]))).tolist() == [
        [0, 1, 0],
        [1, 0, 0],
    ]
    used = lib.array(np.array([[True, True]]))
    assert to_numpy(rows.at(lib.array([[2, 0]]), used)).tolist() == [[0, 1]]
    nothing = rows.at(lib.array(np.zeros((1, 0), dtype=np.int64)), used[:, :0])
    assert tuple(nothing.shape) == (1, 0)


def test_temperature_divides_logits(lib: Library) -> None:
    logits = np.array([[[0.0, 1.0, 3.0]]])
    found = Logits(lib.xp, lib.array(logits), 0.5, "z").take(lib.array([0]), lib.array([0]))
    weights = np.exp(logits[0] / 0.5)
    assert to_numpy(found) == pytest.approx(weights / weights.sum(), rel=1e-5)


def test_large_logits_do_not_overflow(lib: Library) -> None:
    rows = Logits(lib.xp, lib.array(np.array([[[3e4, 3e4, -np.inf]]])), 1.0, "z")
    assert to_numpy(rows.take(lib.array([0]), lib.array([0]))).tolist() == [[0.5, 0.5, 0]]


BROKEN = {
    "NaN": ([0.5, np.nan, 0.5], "has NaN or Inf"),
    "infinite": ([0.5, np.inf, 0.5], "has NaN or Inf"),
    "negative": ([1.25, -0.25, 0.0], "is negative"),
    "sum": ([0.5, 0.5, 0.5], "does not sum to 1"),
    "zero": ([0.0, 0.0, 0.0], "does not sum to 1"),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_row_that_is_no_law_is_named(lib: Library, fault: str) -> None:
    row, message = BROKEN[fault]
    good = [1.0, 0.0, 0.0]
    rows = Dense(lib.xp, lib.array(np.array([[good, good], [good, row]])), "target_probs")
    rows.take(lib.array([0, 1]), lib.array([1, 0]))
    with pytest.raises(InputError, match=f"target_probs {message} at row 1, slot 1"):
        rows.take(lib.array([0, 1]), lib.array([1, 1]))


@pytest.mark.parametrize("row", [[np.nan, 0.0], [np.inf, 0.0], [-np.inf, -np.inf]])
def test_logits_without_a_maximum_are_named(lib: Library, row: list[float]) -> None:
    rows = Logits(lib.xp, lib.array(np.array([[[0.0, 1.0], row]])), 1.0, "target_logits")
    rows.take(lib.array([0]), lib.array([0]))
    with pytest.raises(InputError, match=r"target_logits has NaN.*row 0, slot 1.*-Inf forbids"):
        rows.take(lib.array([0]), lib.array([1]))


@pytest.mark.parametrize("entry", [np.nan, -0.25, 1.5])
def test_an_entry_that_is_no_probability_is_named(lib: Library, entry: float) -> None:
    table = np.array([[[0.5, entry]]])
    rows = Dense(lib.xp, lib.array(table), "draft probs")
    one, used = lib.array([[1]]), lib.array(np.array([[True]]))
    with pytest.raises(InputError, match=r"draft probs is not a probability at row 0, slot 0"):
        rows.at(one, used)
    assert float(rows.at(one, ~used)[0, 0]) == 0  # not read, so not judged


@pytest.mark.parametrize("ids", [[0, 4], [-1, 2], [3, 3]])
def test_a_support_has_distinct_ids_in_the_vocabulary(lib: Library, ids: list[int]) -> None:
    table, halves = lib.array(np.array([[[0, 1], ids]])), lib.array(np.full((1, 2, 2), 0.5))
    rows = SparseRows(lib.xp, table, halves, 4, "draft probs")
    tokens = lib.array([[0, 0]])
    rows.at(tokens, lib.array(np.array([[True, False]])))
    with pytest.raises(InputError, match=r"row 0, slot 1.*distinct and lie in 0 .. 3"):
        rows.at(tokens, lib.array(np.array([[True, True]])))
