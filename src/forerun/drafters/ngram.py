"""Prompt lookup: guesses what followed earlier occurrences of the last n tokens.

For every n-gram of the text, an index holds the places after its latest occurrences, so a guess is
a dictionary lookup and never a scan. It costs almost nothing, and pays if answers repeat their
prompt or themselves: summaries, edits, code, tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from forerun.base.errors import InputError, explain
from forerun.drafters.base import Guess, Outcome, Turn
from forerun.drafters.growing import GrowingTree
from forerun.models.base import LanguageModel

NUM_PLACES = 4
"""The number of latest occurrences of an n-gram that are remembered: trees can use several."""


@dataclass
class Index:
    """A text, and for each of its n-grams the indices of the tokens that followed it."""

    text: list[int] = field(default_factory=list)
    places: dict[tuple[int, ...], tuple[int, ...]] = field(default_factory=dict)  # latest first
    num_indexed: int = 0


@dataclass(frozen=True)
class NGram:
    """Propose what followed the longest matching n-gram, of max_n down to min_n tokens.

    A tree takes the latest continuation first, then earlier ones and those of shorter n-grams, as
    far as the budget goes. min_n=1 also drafts after a match of a single token. Three quarters of
    such guesses are wrong, so it pays only if a guess costs less than a twentieth of a pass.
    """

    max_n: int = 3
    min_n: int = 2
    name: str = "ngram"

    def __post_init__(self) -> None:
        if not 1 <= self.min_n <= self.max_n:
            received = f"min_n={self.min_n}, max_n={self.max_n}"
            cure = "Use 1 <= min_n <= max_n."
            raise InputError(explain("The n-gram lengths are out of order.", received, cure))

    def start(
        self, target: LanguageModel, num_rows: int, capacity: int, rows: Any = None
    ) -> list[Index]:
        return [Index() for _ in range(num_rows)]

    def enter(self, state: list[Index], row: int, tokens: Sequence[int], num_prompt: int) -> None:
        state[row] = Index(list(tokens))

    def propose(
        self, state: list[Index], turns: Sequence[Turn], *, shared_noise: bool
    ) -> list[Guess]:
        return [self._guess(state[turn.row], turn) for turn in turns]

    def observe(self, state: list[Index], outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            state[outcome.row].text += outcome.tokens

    def release(self, state: list[Index], row: int) -> None:
        state[row] = Index()

    def _guess(self, index: Index, turn: Turn) -> Guess:
        self._remember(index)
        tree = GrowingTree()
        for place in self._places(index):
            tree.add_path(_copy(index.text, place, turn.height), turn.budget)
            if turn.is_chain or len(tree) == turn.budget:
                break
        return tree.guess()

    def _places(self, index: Index) -> Iterator[int]:
        """The places where the text continued after its longest match, then after shorter ones."""
        text = index.text
        for size in range(min(self.max_n, len(text)), self.min_n - 1, -1):
            yield from index.places.get(tuple(text[-size:]), ())

    def _remember(self, index: Index) -> None:
        """Index the n-grams before each new token. The n-gram at the end of the text has no
        continuation yet."""
        text = index.text
        for place in range(max(index.num_indexed, 1), len(text)):
            for size in range(self.min_n, min(self.max_n, place) + 1):
                ngram = tuple(text[place - size : place])
                index.places[ngram] = (place, *index.places.get(ngram, ()))[:NUM_PLACES]
        index.num_indexed = len(text)


def _copy(text: Sequence[int], place: int, count: int) -> list[int]:
    """Copy `count` tokens of the text from `place` on. Past the end it reads its own copy, so that
    a repeating text is continued."""
    copied: list[int] = []
    for offset in range(place, place + count):
        copied.append(text[offset] if offset < len(text) else copied[offset - len(text)])
    return copied
