"""A drafter that leaves everything to another one: a subclass says what it does differently."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from forerun.drafters.base import Drafter, Guess, Outcome, Turn, close
from forerun.models.base import LanguageModel


@dataclass
class PassingOn:
    """The verbs of `inner`, one by one."""

    inner: Drafter

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def num_successors(self) -> int:
        """What it wants to be told about each token of a round."""
        return getattr(self.inner, "num_successors", 0)

    def start(self, target: LanguageModel, num_rows: int, capacity: int, rows: Any = None) -> Any:
        return self.inner.start(target, num_rows, capacity, rows)

    def propose(self, state: Any, turns: Sequence[Turn], *, shared_noise: bool) -> list[Guess]:
        return self.inner.propose(state, turns, shared_noise=shared_noise)

    def observe(self, state: Any, outcomes: Sequence[Outcome]) -> None:
        self.inner.observe(state, outcomes)

    def release(self, state: Any, row: int) -> None:
        self.inner.release(state, row)

    def close(self, state: Any) -> None:
        close(self.inner, state)
