"""Drafters without `enter`, as they were written at first, read the whole text in every turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from forerun.drafters.base import Drafter, Guess, Outcome, Turn, assign, close, layers_of
from forerun.drafters.texts import Text, Texts
from forerun.errors import warn
from forerun.models.base import LanguageModel


@dataclass(frozen=True)
class TextTurn(Turn):
    """A turn that shows the whole text."""

    tokens: Sequence[int] = ()  # the text so far, prompt included
    num_prompt: int = 0


def with_text(turn: Turn, text: Text) -> TextTurn:
    """The turn with the text of its row."""
    known = {part.name: getattr(turn, part.name) for part in fields(Turn)}
    return TextTurn(**known, tokens=text.tokens, num_prompt=text.num_prompt)


class WholeTexts:
    """Shows another drafter the whole text in every turn and every outcome."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.name: str = inner.name
        self.num_successors: int = getattr(inner, "num_successors", 0)
        self.layers = layers_of(inner)

    @property
    def steered_as(self) -> Any:
        """The drafter whose acceptance decides how far to draft."""
        return getattr(self.inner, "steered_as", self.inner)

    def start(
        self, target: LanguageModel, num_rows: int, capacity: int, rows: Any = None
    ) -> tuple[Any, Texts]:
        return self.inner.start(target, num_rows, capacity, rows), Texts()

    def assign(self, state: tuple[Any, Texts], row: int, owner: str) -> None:
        assign(self.inner, state[0], row, owner)

    def enter(
        self, state: tuple[Any, Texts], row: int, tokens: Sequence[int], num_prompt: int
    ) -> None:
        state[1].enter(row, tokens, num_prompt)

    def propose(
        self, state: tuple[Any, Texts], turns: Sequence[Turn], *, shared_noise: bool
    ) -> list[Guess]:
        inner, texts = state
        shown = [with_text(turn, texts[turn.row]) for turn in turns]
        guesses: list[Guess] = self.inner.propose(inner, shown, shared_noise=shared_noise)
        return guesses

    def observe(self, state: tuple[Any, Texts], outcomes: Sequence[Outcome]) -> None:
        inner, texts = state
        texts.observe(outcomes)
        shown = [replace(outcome, tokens=texts[outcome.row].tokens) for outcome in outcomes]
        self.inner.observe(inner, shown)

    def release(self, state: tuple[Any, Texts], row: int) -> None:
        state[1].release(row)
        self.inner.release(state[0], row)

    def close(self, state: tuple[Any, Texts]) -> None:
        close(self.inner, state[0])


def told_of_changes(drafter: Any) -> Drafter:
    """The drafter itself; one without `enter` is given whole texts, with a warning."""
    if hasattr(drafter, "enter"):
        known: Drafter = drafter
        return known
    name = getattr(drafter, "name", type(drafter).__name__)
    message = (
        f"The drafter {name} has no method `enter`, so it is shown whole texts, which will end. "
        "Drafters are told of a text once, by `enter`, and then what was added to it: see "
        "docs/write-a-drafter.md."
    )
    warn(message, DeprecationWarning)
    return WholeTexts(drafter)
