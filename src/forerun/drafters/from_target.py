"""A base class for drafters whose drafting model is made from the target itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from forerun.drafters.base import Guess, Outcome, Turn
from forerun.drafters.model import Model, ModelDraftState
from forerun.models.base import LanguageModel
from forerun.trees.sibling_laws import Children


@dataclass(frozen=True)
class Made:
    """The drafter that was made from one engine's target, and its state."""

    drafter: Model
    model_state: ModelDraftState


class FromTarget(ABC):
    """Drafts with a model that a subclass makes from the target; has the same options as
    `Model`."""

    def __init__(self, name: str, temperature: float | None, children: Children | str) -> None:
        self.name = name
        self.temperature = temperature
        self.children = children

    @abstractmethod
    def make(self, target: LanguageModel, rows: Any) -> LanguageModel:
        """Make the drafting model. rows: the target's state."""

    def start(self, target: LanguageModel, num_rows: int, capacity: int, rows: Any = None) -> Made:
        made = self.make(target, rows)
        drafter = Model(made, temperature=self.temperature, children=self.children)
        return Made(drafter, drafter.start(target, num_rows, capacity, rows))

    def enter(self, state: Made, row: int, tokens: Sequence[int], num_prompt: int) -> None:
        state.drafter.enter(state.model_state, row, tokens, num_prompt)

    def propose(self, state: Made, turns: Sequence[Turn], *, shared_noise: bool) -> list[Guess]:
        return state.drafter.propose(state.model_state, turns, shared_noise=shared_noise)

    def observe(self, state: Made, outcomes: Sequence[Outcome]) -> None:
        state.drafter.observe(state.model_state, outcomes)

    def release(self, state: Made, row: int) -> None:
        state.drafter.release(state.model_state, row)
