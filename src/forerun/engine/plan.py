"""What a round is going to do, decided before anything is computed.

A plan names rows and parts of texts and holds no array.  How far to draft is decided when it is
executed, by the policy of the engine's drafter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from forerun.engine.request import Request


@dataclass(frozen=True)
class Span:
    """One row's part in a round: the target is fed `request.tokens[start:end]`."""

    row: int
    request: Request
    start: int
    end: int
    is_new: bool  # no token has been given to the request yet

    @property
    def tokens(self) -> list[int]:
        return self.request.tokens[self.start : self.end]

    @property
    def answers(self) -> bool:
        """Whether the rest of the text is fed, so that a draft and a token can follow it."""
        return self.end == len(self.request.tokens)


@dataclass(frozen=True)
class RoundPlan:
    """The spans of one round, each in a row of its own."""

    spans: Sequence[Span]

    @cached_property
    def answering(self) -> list[Span]:
        """Those that are given tokens in this round."""
        return [span for span in self.spans if span.answers]

    @cached_property
    def reading(self) -> list[Span]:
        """Those that are fed a part of a long text, and nothing more."""
        return [span for span in self.spans if not span.answers]
