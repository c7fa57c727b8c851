"""Collects the texts of a drafter's rows from the tokens that the drafter receives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from forerun.drafters.base import Outcome


@dataclass
class Text:
    """The text of one row."""

    tokens: list[int] = field(default_factory=list)  # prompt and output
    num_prompt: int = 0

    @property
    def prompt(self) -> list[int]:
        """The tokens of the prompt."""
        return self.tokens[: self.num_prompt]

    @property
    def output(self) -> list[int]:
        """The tokens after the prompt."""
        return self.tokens[self.num_prompt :]


class Texts:
    """The texts of all rows, for drafters that need more than the newest tokens."""

    def __init__(self) -> None:
        self._texts: dict[int, Text] = {}

    def enter(self, row: int, tokens: Sequence[int], num_prompt: int) -> None:
        self._texts[row] = Text(list(tokens), num_prompt)

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            self._texts[outcome.row].tokens += outcome.tokens

    def release(self, row: int) -> None:
        self._texts.pop(row, None)

    def __getitem__(self, row: int) -> Text:
        return self._texts[row]
