"""The plan of a round, decided before anything is computed.

A plan is a value: which rows take part, which tokens each is fed, how far to draft, how to sample.
It is made on the host from what is known between rounds.  Whoever executes it reads no clock and
asks no policy, so two processes that execute the same plan come to the same decision.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from forerun.drafters.base import Prices
from forerun.engine.request import Request
from forerun.engine.sampling_arrays import SamplingArrays
from forerun.engine.steering.paying_guesses import Tariff
from forerun.trees.tree import Tree


@dataclass(frozen=True)
class Span:
    """One row's part in a round: the target is fed `request.tokens[start:end]`."""

    row: int
    request: Request
    start: int
    end: int
    is_new: bool  # no token has been given to the request yet
    answers: bool  # the rest of the text is fed, so a draft and a token can follow it

    @property
    def tokens(self) -> list[int]:
        return self.request.tokens[self.start : self.end]


class RowChange(NamedTuple):
    """A change of a row between two rounds.

    verb: "leave", its request ended; or a method of the model, `release`, `truncate` or
    `copy_prefix`, which was called with these arguments after the state.
    """

    verb: str
    arguments: tuple[int, ...]  # of "leave": the row


class DraftLimits(NamedTuple):
    """The number of guesses allowed after one span."""

    budget: int  # tokens
    depth: int | None = None  # tokens one after another; None: as many as the budget, a chain
    shape: Tree | None = None  # the tree to fill; None: any
    prices: Prices | None = None  # None: not known


@dataclass(frozen=True)
class DraftPlan:
    """The calls of the drafter in a round, and the prices that decide which guesses are scored."""

    limits: Sequence[DraftLimits | None] = ()  # (A,), None: not asked about that span; or empty
    tariff: Tariff | None = None  # None: all guesses are scored
    is_trial: bool = False  # it does not seem to pay, and is drafted to learn from it

    @cached_property
    def asked(self) -> list[int]:
        """The answered spans, by index, that the drafter is asked about."""
        return [index for index, limits in enumerate(self.limits) if limits is not None]


@dataclass(frozen=True)
class RoundPlan:
    """The spans of one round, each in a row of its own; A of them are answered."""

    spans: Sequence[Span]
    drafts: DraftPlan = field(default_factory=DraftPlan)
    changes: Sequence[RowChange] = ()  # since the last plan, already made in the planning process

    @cached_property
    def answering(self) -> list[Span]:
        """The spans that are given tokens in this round, (A,)."""
        return [span for span in self.spans if span.answers]

    @cached_property
    def reading(self) -> list[Span]:
        """The spans that are fed a part of a long text, and nothing more."""
        return [span for span in self.spans if not span.answers]

    @cached_property
    def sampling(self) -> SamplingArrays:
        """Sampling options, seeds and positions of the answered spans, made when asked for."""
        return SamplingArrays.of([span.request for span in self.answering])
