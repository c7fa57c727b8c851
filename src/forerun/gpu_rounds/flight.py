"""Captured rounds on their way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from forerun.engine.plan import Span
from forerun.gpu_rounds.rounds import CapturedRound


@dataclass(frozen=True)
class Flight:
    """A round on its way, and what it was launched for, by lane."""

    round: CapturedRound
    spans: Sequence[Span]
    lengths: Sequence[int]  # of the texts, as they were then
    asked: Sequence[int]  # tokens to draft
    is_trial: bool  # its drafts do not seem to pay
    launched: float  # when
    turn: int  # which of the round's places for results is its own

    def wait(self) -> None:
        self.round.wait(self.turn)

    def table(self) -> list[list[int]]:
        """By lane: accepted tokens (-1: not in use), the extra token, the fault, the row that it
        follows, the draft."""
        return self.round.table(self.turn)

    @property
    def places(self) -> dict[tuple[int, int], int]:
        """Lanes by the number of a request and the length of its text."""
        numbers = [span.request.number for span in self.spans]
        return {key: lane for lane, key in enumerate(zip(numbers, self.lengths, strict=True))}
