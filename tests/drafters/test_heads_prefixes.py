"""A row that took over its beginning is drafted for like one that read it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_heads import save_drafter, tiny_llama

import forerun as fr
from forerun.drafters import Heads
from forerun.drafters.base import Outcome

TEXT = [5, 9, 3, 7, 7, 1, 2, 30, 4, 50, 6]


def _target(name: str) -> Any:
    if name == "plain":
        return fr.wrap(tiny_llama(seed=3))
    pytest.importorskip("numba")
    from forerun.lean.model import LeanModel

    return LeanModel(tiny_llama(seed=3))


def _read(target: Any, rows: Any, drafter: Any, state: Any, row: int, text: Sequence[int]) -> None:
    """A request whose target reads all but the newest token of its text in one round."""
    drafter.enter(state, row, text, len(text))
    _go_on(target, rows, drafter, state, row, text)


def _go_on(target: Any, rows: Any, drafter: Any, state: Any, row: int, text: Sequence[int]) -> None:
    """One round without a draft, after which the text is this."""
    feed = text[rows.lengths[row] : -1]
    target.score(rows, [row], [feed], [1])
    target.commit(rows, [row], [len(feed)])
    known = len(state.texts[row].tokens)
    states, num_processed = target.watched(rows, row), rows.lengths[row]
    new = text[known:]
    drafter.observe(state, [Outcome(row, 0, new, states=states, num_processed=num_processed)])


@pytest.mark.parametrize("name", ["plain", "lean"])
def test_a_copied_beginning_is_heard(name: str, tmp_path: Path) -> None:
    save_drafter(tmp_path, tiny_llama(seed=3))
    target, drafter = _target(name), Heads(tmp_path)
    rows = target.start(4)
    target.watch(rows, drafter.layers)
    state = drafter.start(target, 4, 0, rows)
    others = [*TEXT[:7], 8, 9, 10]
    for row, text in ((0, TEXT), (1, others)):
        _read(target, rows, drafter, state, row, text)
    assert target.copy_prefix(rows, 0, 2, 7) == 7
    assert not state.can_draft(2)
    _read(target, rows, drafter, state, 2, others)
    drafter.release(state, 0)
    assert target.truncate(rows, 0, 7) == 7
    _read(target, rows, drafter, state, 0, others)
    for row in (0, 1, 2):
        assert state.can_draft(row)
    logits = state.begin([1, 2, 0])
    for copied in (1, 2):
        np.testing.assert_allclose(logits[copied], logits[0], atol=1e-4)
    for row in (2, 0):  # and it goes on being heard
        _go_on(target, rows, drafter, state, row, [*others, 11, 12])
        assert state.can_draft(row)


def test_a_beginning_that_nobody_watched_is_done_without(tmp_path: Path) -> None:
    save_drafter(tmp_path, tiny_llama(seed=3))
    target, drafter = _target("plain"), Heads(tmp_path)
    rows = target.start(2)
    target.score(rows, [0], [TEXT], [1])
    target.commit(rows, [0], [len(TEXT)])
    target.watch(rows, drafter.layers)
    state = drafter.start(target, 2, 0, rows)
    assert target.copy_prefix(rows, 0, 1, 7) == 7
    for end in (9, 11):
        _read(target, rows, drafter, state, 1, TEXT[:end])
        assert not state.can_draft(1)
