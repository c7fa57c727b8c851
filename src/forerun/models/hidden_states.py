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

    def add(self, row: int, states: Any) -> Any:
        """Append the states of a commit.

        Returns the states that the row's user has not been shown yet: all states of the row after
        `copy`, else those of this commit.
        """
        parts = self._parts[row]
        if parts is None:
            return states
        parts.append(states)
        if not self._is_new[row]:
            return states
        self._is_new[row] = False
        return self._whole(parts)

    def copy(self, source: int, row: int, length: int) -> None:
        """Let `row` share the first `length` states of `source`, which may be the same row."""
        parts = self._parts[source]
        self._parts[row] = None if parts is None else self._first(parts, length)
        self._is_new[row] = True

    def release(self, row: int) -> None:
        self._parts[row], self._is_new[row] = [], False

    def _first(self, parts: list[Any], length: int) -> list[Any]:
        """The first `length` states as a list of parts."""
        return [self._whole(parts)[:length]] if parts and length else []

    def _whole(self, parts: list[Any]) -> Any:
        """All states as one array; the parts are replaced by it."""
        if len(parts) > 1:
            parts[:] = [self._join(parts)]
        return parts[0]
