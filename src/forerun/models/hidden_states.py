"""Keeps hidden states of all stored tokens, for drafters that start on a row already in use.

States are kept as long as the keys and values of their tokens. With a few layers watched they take
about a sixth of the memory of the keys and values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


class History:
    """States (N, F) per row, in the parts in which they were committed; parts never change."""

    def __init__(self, lengths: Sequence[int], join: Callable[[list[Any]], Any]) -> None:
        """lengths: the lengths of the rows now; states of tokens that they store are missing.

        join: concatenates arrays of the model's library.
        """
        self._join = join
        self._parts: list[list[Any] | None] = [None if length else [] for length in lengths]
        self._is_new = [False] * len(lengths)  # the row's user has not been shown the states yet
        self._is_cut = [False] * len(lengths)  # states of later tokens are missing

    def add(self, row: int, states: Any) -> Any:
        """Append the states of a commit.

        Returns the states that the row's user has not been shown yet: after `copy` or `put` all
        states of the row, else those of this commit.
        """
        parts = self._parts[row]
        if parts is None or self._is_cut[row]:
            return states
        parts.append(states)
        if not self._is_new[row]:
            return states
        self._is_new[row] = False
        return self._whole(parts)

    def copy(self, source: int, row: int, length: int) -> None:
        """Let `row` share the first `length` states of `source`, which may be the same row."""
        parts = self._parts[source]
        if parts is not None and self._is_cut[source] and length > sum(map(len, parts)):
            parts = None
        self._parts[row] = None if parts is None else self._first(parts, length)
        self._is_new[row], self._is_cut[row] = True, False

    def release(self, row: int) -> None:
        self._parts[row], self._is_new[row], self._is_cut[row] = [], False, False

    def put(self, row: int, states: Any) -> None:
        """Append states that the row's user will be shown with the next commit."""
        parts = self._parts[row]
        if parts is not None and not self._is_cut[row]:
            parts.append(states)
            self._is_new[row] = True

    def cut(self, row: int) -> None:
        """From now on, keep no states of the tokens that this row stores."""
        self._is_cut[row] = True

    def _first(self, parts: list[Any], length: int) -> list[Any]:
        """The first `length` states as a list of parts."""
        return [self._whole(parts)[:length]] if parts and length else []

    def _whole(self, parts: list[Any]) -> Any:
        """All states as one array; the parts are replaced by it."""
        if len(parts) > 1:
            parts[:] = [self._join(parts)]
        return parts[0]
