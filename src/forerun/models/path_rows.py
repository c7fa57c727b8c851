"""The base of the rows of our own passes, independent of how keys and values are stored.

Nodes of a tree are stored one after the other like text; a commit moves the nodes of the kept path
to the end of the text.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from forerun.models.base import Kept
from forerun.models.feed import Feed
from forerun.models.hidden_states import History


class PathRows(ABC):
    """Rows that can keep any path of scored tokens, and the beginning of another row.

    lengths: tokens stored per row.  kept: hidden states of the last commit, by row.
    """

    def __init__(self, num_rows: int) -> None:
        self.lengths = [0] * num_rows
        self.kept: list[Any] = [None] * num_rows
        self._history: History | None = None  # hidden states of all commits, where they are kept
        self._seen: list[Any] = [None] * num_rows  # hidden states since the last commit
        self._fed = [Feed()] * num_rows  # since the last commit

    @abstractmethod
    def forget(self, row: int, known: int = 0) -> None:
        """Forget all but the first `known` tokens that were scored since the last commit."""

    @abstractmethod
    def _move(self, row: int, sources: Any, targets: Any) -> None:
        """Copy keys and values within a row: from slots (M,) to slots (M,)."""

    @abstractmethod
    def _cut(self, row: int, length: int) -> None:
        """Free the storage of a row past its first `length` tokens."""

    def commit(self, rows: Sequence[int], kept: Sequence[Kept]) -> None:
        paths = [self._fed[row].path(row, keeps) for row, keeps in zip(rows, kept, strict=True)]
        for row, path in zip(rows, paths, strict=True):
            if not isinstance(path, range):
                self._gather(row, np.asarray(path, np.int64))
            if self._history is not None:
                self.kept[row] = self._history.add(row, self._states(row, path))
            self.forget(row)
            self.lengths[row] += len(path)

    def _states(self, row: int, path: Sequence[int]) -> Any:
        """A copy of the hidden states of a path."""
        return self._seen[row][list(path)]

    def release(self, row: int) -> None:
        self.lengths[row] = 0
        self._cut(row, 0)
        self.kept[row] = None
        if self._history is not None:
            self._history.release(row)
        self.forget(row)

    def truncate(self, row: int, length: int) -> int:
        length = min(length, self.lengths[row])
        self._cut(row, length)
        return self._set_prefix(row, row, length)

    def _set_prefix(self, source: int, row: int, length: int) -> int:
        """Record that `row` stores the first `length` tokens of `source` and nothing else; returns
        the length."""
        self.lengths[row] = length
        self.kept[row] = None
        if self._history is not None:
            self._history.copy(source, row, length)
        self.forget(row)
        return length

    def _gather(self, row: int, path: Any) -> None:
        """Move the keys and values of a path to the end of the row's text."""
        new = self.lengths[row] + np.arange(len(path))
        old = self.lengths[row] + path
        is_moved = old != new
        if is_moved.any():
            self._move(row, old[is_moved], new[is_moved])
