"""Drafters for measuring: they make the engine run rounds of a chosen size.

Costs are timed in rounds that the engine really runs, not in loops around a model, so they
include everything that a round does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle
from typing import Any

from forerun.drafters.base import Guess, Outcome, Turn
from forerun.drafters.passing_on import PassingOn
from forerun.models.base import LanguageModel

Answers = dict[int, Sequence[int]]
"""The known answer of each row."""


@dataclass(frozen=True)
class Script:
    """Proposes the known next tokens: correct up to a slot that varies, wrong after it.

    It always proposes as many tokens as asked, so the engine runs passes of every size and
    accepts drafts of every length.
    outputs: the known answer to each prompt.
    is_ragged: every other row proposes nothing.
    """

    outputs: Mapping[tuple[int, ...], Sequence[int]]
    is_ragged: bool = False
    name: str = "script"

    def start(
        self, target: LanguageModel, num_rows: int, capacity: int, rows: Any = None
    ) -> Answers:
        return {}

    def enter(self, state: Answers, row: int, tokens: Sequence[int], num_prompt: int) -> None:
        state[row] = self.outputs[tuple(tokens[:num_prompt])]

    def propose(self, state: Answers, turns: Sequence[Turn], *, shared_noise: bool) -> list[Guess]:
        return [Guess(self._guess(turn, state[turn.row])) for turn in turns]

    def observe(self, state: Answers, outcomes: Sequence[Outcome]) -> None:
        """Does nothing, because there is nothing to learn."""

    def release(self, state: Answers, row: int) -> None:
        del state[row]

    def _guess(self, turn: Turn, output: Sequence[int]) -> list[int]:
        if self.is_ragged and turn.row % 2:
            return []
        known = list(output[turn.position : turn.position + turn.budget])
        guess = [*known, *[0] * (turn.budget - len(known))]
        right = turn.position % (turn.budget + 1)
        return [token if slot < right else _other(token) for slot, token in enumerate(guess)]


def _other(token: int) -> int:
    return token - 1 if token else 1


@dataclass
class Cycling(PassingOn):
    """Asks another drafter for drafts, each time of the next length in `lengths`, and records each
    request."""

    lengths: Sequence[int]
    asked: list[int] = field(default_factory=list)  # the longest budget of each round

    def __post_init__(self) -> None:
        self._next = cycle(self.lengths)

    def propose(self, state: Any, turns: Sequence[Turn], *, shared_noise: bool) -> list[Guess]:
        length = next(self._next)
        cut = [replace(turn, budget=min(turn.budget, length)) for turn in turns]
        self.asked.append(max(turn.budget for turn in cut))
        return super().propose(state, cut, shared_noise=shared_noise)


@dataclass
class Overheard(PassingOn):
    """Records the guess of another drafter at every token and proposes nothing, so that decoding
    stays plain."""

    guesses: list[Guess] = field(default_factory=list)  # at each output position

    def propose(self, state: Any, turns: Sequence[Turn], *, shared_noise: bool) -> list[Guess]:
        self.guesses += super().propose(state, turns, shared_noise=shared_noise)
        return [Guess() for _ in turns]
