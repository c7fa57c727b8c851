"""Prompt lookup: what followed the last time the text went like this?

Every n-gram of the text is remembered with the place where its latest occurrence went on, so a
proposal is a dictionary lookup and never a scan.  Costs nothing, and pays where answers repeat
their prompt or themselves: summaries, edits, code, tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from forerun.drafters.base import Guess, Outcome, Turn
from forerun.errors import InputError, explain
from forerun.models.base import LanguageModel


@dataclass
class Index:
    """Where each n-gram of one text went on: n-gram -> index of the token after it."""

    places: dict[tuple[int, ...], int] = field(default_factory=dict)
    num_indexed: int = 0


@dataclass(frozen=True)
class NGram:
    """Propose what followed the longest matching n-gram, of max_n down to min_n tokens."""

    max_n: int = 3
    min_n: int = 1
    name: str = "ngram"

    def __post_init__(self) -> None:
        if not 1 <= self.min_n <= self.max_n:
            received = f"min_n={self.min_n}, max_n={self.max_n}"
            cure = "Use 1 <= min_n <= max_n."
            raise InputError(explain("The n-gram lengths are out of order.", received, cure))

    def start(self, target: LanguageModel, num_rows: int, capacity: int) -> list[Index]:
        return [Index() for _ in range(num_rows)]

    def propose(
        self, state: list[Index], turns: Sequence[Turn], *, shared_noise: bool
    ) -> list[Guess]:
        return [self._guess(state[turn.row], turn) for turn in turns]

    def observe(self, state: list[Index], outcomes: Sequence[Outcome]) -> None:
        """Nothing to learn: the text itself is read at the next proposal."""

    def release(self, state: list[Index], row: int) -> None:
        state[row] = Index()

    def _guess(self, index: Index, turn: Turn) -> Guess:
        text = turn.tokens
        self._remember(index, text)
        for size in range(min(self.max_n, len(text)), self.min_n - 1, -1):
            place = index.places.get(tuple(text[-size:]))
            if place is not None:
                return Guess(_copy(text, place, turn.budget))
        return Guess()

    def _remember(self, index: Index, text: Sequence[Any]) -> None:
        """Index the n-grams that end before each new token; the text's own end has no sequel."""
        for place in range(max(index.num_indexed, 1), len(text)):
            for size in range(self.min_n, min(self.max_n, place) + 1):
                index.places[tuple(text[place - size : place])] = place
        index.num_indexed = len(text)


def _copy(text: Sequence[int], place: int, count: int) -> list[int]:
    """`count` tokens from `place` on, running on into the copy itself: loops go on as loops."""
    copied: list[int] = []
    for offset in range(place, place + count):
        copied.append(text[offset] if offset < len(text) else copied[offset - len(text)])
    return copied
