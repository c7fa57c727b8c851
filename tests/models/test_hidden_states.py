"""Hidden states of stored tokens, some of which were put aside or are missing."""

from __future__ import annotations

from typing import Any

import numpy as np

from forerun.models.hidden_states import History


def states(*values: int) -> Any:
    return np.array(values)[:, None]


def shown(history: History, row: int, *values: int) -> list[int]:
    """What the user of a row is shown with a commit of these states."""
    return [int(value) for value in history.add(row, states(*values))[:, 0]]


def test_what_was_put_aside_is_shown_with_the_next_commit() -> None:
    history = History([0, 0], np.concatenate)
    history.put(0, states(1, 2))
    history.put(0, states(3))
    assert shown(history, 0, 4) == [1, 2, 3, 4]
    assert shown(history, 0, 5) == [5]
    assert shown(history, 1, 6) == [6]


def test_a_row_is_known_up_to_where_states_are_missing() -> None:
    """A copy of what is known begins with it; a longer one begins without."""
    history = History([0, 0, 0], np.concatenate)
    history.put(0, states(1, 2, 3))
    history.cut(0)
    history.put(0, states(7))
    assert shown(history, 0, 8) == [8]
    history.copy(0, 1, 2)
    history.copy(0, 2, 4)
    assert shown(history, 1, 9) == [1, 2, 9]
    assert shown(history, 2, 9) == [9]


def test_a_row_that_is_emptied_or_cut_short_is_known_again() -> None:
    history = History([0, 0], np.concatenate)
    for row in (0, 1):
        history.put(row, states(1, 2, 3))
        history.cut(row)
    history.copy(0, 0, 2)
    assert shown(history, 0, 4) == [1, 2, 4]
    assert shown(history, 0, 5) == [5]
    history.copy(0, 0, 4)
    assert shown(history, 0, 6) == [1, 2, 4, 5, 6]
    history.release(1)
    assert shown(history, 1, 6) == [6]
