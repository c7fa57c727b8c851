"""Tells which request a row of a batch holds, where an engine gives texts and no names.

Between two steps a request's text grows by the tokens that were just sampled and is the same
before them.  Rows may be swapped, filled with other requests, or left empty for a while.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

Known = TypeVar("Known")
Text = np.ndarray[Any, Any]
"""Token ids, (N,)."""


@dataclass
class Request(Generic[Known]):
    """A request in the batch, and what its owner knows of it."""

    text: Text
    known: Known | None = None

    def goes_on_as(self, text: Text, num_sampled: int) -> bool:
        """Whether this text is the request's with `num_sampled` new tokens."""
        end = len(self.text)
        return len(text) == end + num_sampled and bool(np.array_equal(text[:end], self.text))


class Recognition(Generic[Known]):
    """The requests of the last step, by row."""

    def __init__(self) -> None:
        self._last: list[Request[Known]] = []

    def update(
        self, texts: Sequence[Text], counts: Sequence[int]
    ) -> tuple[list[Request[Known]], list[Known]]:
        """The request of each row now, and what was known of those that are in no row any more.

        counts: (R,), how many tokens were sampled.  Equal texts are interchangeable.
        """
        missing = dict(enumerate(self._last))
        present: list[Request[Known] | None] = [None] * len(texts)
        for take_any in (False, True):  # rows that stayed where they were come first
            for row, (text, count) in enumerate(zip(texts, counts, strict=True)):
                if present[row] is None:
                    candidates = list(missing) if take_any else [row] if row in missing else []
                    for source in candidates:
                        if missing[source].goes_on_as(text, count):
                            present[row] = missing.pop(source)
                            break
        now = []
        for request, text in zip(present, texts, strict=True):
            request = request or Request(text)
            request.text = np.array(text)
            now.append(request)
        self._last = now
        return now, [gone.known for gone in missing.values() if gone.known is not None]
