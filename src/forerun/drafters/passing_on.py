"""A drafter that forwards every call to another one; subclasses override some."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from forerun.drafters.base import Drafter, Guess, Outcome, Turn, assign, close, layers_of
from forerun.models.base import LanguageModel


@dataclass
class PassingOn:
    """Forwards every call to `inner`."""

    inner: Drafter

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def layers(self) -> tuple[int, ...]:
        """The target's layers whose hidden states the inner drafter reads."""
        return layers_of(self.inner)

    def start(self, target: LanguageModel, num_rows: int, capacity: int, rows: Any = None) -> Any:
        return self.inner.start(target, num_rows, capacity, rows)

    def assign(self, state: Any, row: int, owner: str) -> None:
        assign(self.inner, state, row, owner)

    def enter(self, state: Any, row: int, tokens: Sequence[int], num_prompt: int) -> None:
        self.inner.enter(state, row, tokens, num_prompt)

    def propose(self, state: Any, turns: Sequence[Turn], *, shared_noise: bool) -> list[Guess]:
        return self.inner.propose(state, turns, shared_noise=shared_noise)

    def observe(self, state: Any, outcomes: Sequence[Outcome]) -> None:
        self.inner.observe(state, outcomes)

    def release(self, state: Any, row: int) -> None:
        self.inner.release(state, row)

    def close(self, state: Any) -> None:
        close(self.inner, state)
