"""Hidden states of stored tokens, some of which are missing."""

from __future__ import annotations

from typing import Any

import numpy as np

from forerun.models.hidden_states import History


def states(*values: int) -> Any:
    return np.array(values)[:, None]


def shown(history: History, row: int, *values: int) -> list[int]:
    """What the user of a row is shown with a commit of these states."""
    return [int(value) for value in history.add(row, states(*values))[:, 0]]


def test_a_row_that_begins_as_a_copy_is_shown_whole_with_its_next_commit() -> None:
    history = History([0, 0], np.concatenate)
    assert shown(history, 0, 1, 2) == [1, 2]
    assert shown(history, 0, 3) == [3]
    history.copy(0, 1, 2)
    assert shown(history, 1, 9) == [1, 2, 9]
    assert shown(history, 1, 8) == [8]
    history.copy(0, 0, 1)
    assert shown(history, 0, 7) == [1, 7]


def test_states_of_tokens_that_were_stored_before_are_missing() -> None:
    """In copies too, until the row is emptied."""
    history = History([3, 0], np.concatenate)
    assert shown(history, 0, 4) == [4]
    history.copy(0, 1, 2)
    assert shown(history, 1, 9) == [9]
    history.release(1)
    assert shown(history, 1, 6) == [6]
    history.copy(1, 0, 1)
    assert shown(history, 0, 5) == [6, 5]
