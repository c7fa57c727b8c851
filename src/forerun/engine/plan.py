"""The plan of a round, made before anything is computed.

A plan is a value: which rows take part, which tokens each is fed, how far to draft, how to sample.
It is made on the host from what is known between rounds. Executing it reads no clock and asks no
policy, so two processes that execute the same plan make the same decision.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from forerun.base.arrays import HostArray
from forerun.drafters.base import Prices
from forerun.engine.request import Request
from forerun.engine.steering.paying_guesses import Tariff
from forerun.trees.tree import Tree


@dataclass(frozen=True)
class SamplingArrays:
    """The sampling options of A requests as arrays (A,).

    For a request without any of the flags below, temperature, top_k, top_p and min_p are
    sufficient.
    """

    temperature: HostArray  # float64; 0 is greedy
    top_k: HostArray  # int64; 0 keeps every token
    top_p: HostArray  # float64
    min_p: HostArray  # float64
    repetition_penalty: HostArray  # float64; 1 is none
    presence_penalty: HostArray  # float64
    frequency_penalty: HostArray  # float64
    min_tokens: HostArray  # int64
    seeds: HostArray  # uint64
    positions: HostArray  # int64: index in the output of the next token
    calls_python: HostArray  # bool: a processor or a grammar
    edits_logits: HostArray  # bool: a logit bias, or bad words
    counts_tokens: HostArray  # bool: a penalty, which depends on the tokens of the text
    delays_end: HostArray  # bool: min_tokens is not reached yet
    reports_logprobs: HostArray  # bool

    @property
    def needs_host(self) -> HostArray:
        """Whether each request uses options beyond temperature, top_k, top_p and min_p, (A,)."""
        return np.asarray(
            self.calls_python
            | self.edits_logits
            | self.counts_tokens
            | self.delays_end
            | self.reports_logprobs
        )

    @classmethod
    def of(cls, requests: Sequence[Request]) -> SamplingArrays:
        """The arrays for these requests."""
        options = [request.sampling for request in requests]

        def floats(name: str) -> HostArray:
            return np.array([getattr(sampling, name) for sampling in options], dtype=np.float64)

        def flags(values: Sequence[object]) -> HostArray:
            return np.array([bool(value) for value in values], dtype=bool)

        repetition = floats("repetition_penalty")
        presence, frequency = floats("presence_penalty"), floats("frequency_penalty")
        min_tokens = np.array([sampling.min_tokens for sampling in options], dtype=np.int64)
        positions = np.array([request.num_output for request in requests], dtype=np.int64)
        return cls(
            temperature=floats("temperature"),
            top_k=np.array([sampling.top_k or 0 for sampling in options], dtype=np.int64),
            top_p=floats("top_p"),
            min_p=floats("min_p"),
            repetition_penalty=repetition,
            presence_penalty=presence,
            frequency_penalty=frequency,
            min_tokens=min_tokens,
            seeds=np.array([request.seed for request in requests], dtype=np.uint64),
            positions=positions,
            calls_python=flags([r.processors or r.sampling.grammar is not None for r in requests]),
            edits_logits=flags([r.sampling.logit_bias or r.bans.words for r in requests]),
            counts_tokens=(repetition != 1) | (presence != 0) | (frequency != 0),
            delays_end=positions < min_tokens,
            reports_logprobs=flags([request.num_logprobs is not None for request in requests]),
        )


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
        """The tokens that the target is fed."""
        return self.request.tokens[self.start : self.end]


class RowChange(NamedTuple):
    """A change to a row between two rounds.

    verb: "leave" if its request ended; or the name of a model method (`release`, `truncate` or
    `copy_prefix`).
    arguments: what the method was called with after the state.
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
    """The requests to draft for in a round, and the prices that decide which guesses are scored."""

    limits: Sequence[DraftLimits | None] = ()  # (A,), None: not asked about that span; or empty
    tariff: Tariff | None = None  # None: all guesses are scored
    is_trial: bool = False  # it does not seem to pay, and is drafted to learn from it

    @cached_property
    def asked(self) -> list[int]:
        """The indices of the answered spans for which the drafter is asked."""
        return [index for index, limits in enumerate(self.limits) if limits is not None]


class Load(NamedTuple):
    """The amount of work in a round. The times of rounds with equal loads can be compared."""

    num_answered: int  # rows that are given tokens, and have been before
    num_read: int  # prompt tokens, padding included where that is computed too


@dataclass(frozen=True)
class RoundPlan:
    """The spans of one round, each in a row of its own; A of them are answered."""

    spans: Sequence[Span]
    drafts: DraftPlan = field(default_factory=DraftPlan)
    changes: Sequence[RowChange] = ()  # since the last plan, already made in the planning process

    @cached_property
    def answering(self) -> list[Span]:
        """The spans whose requests get tokens in this round, (A,)."""
        return [span for span in self.spans if span.answers]

    @cached_property
    def reading(self) -> list[Span]:
        """The spans that only read a part of a long text and get no token."""
        return [span for span in self.spans if not span.answers]

    @cached_property
    def load(self) -> Load:
        """The work of the round."""
        num_new = num_read = 0
        for span in self.spans:
            if span.is_new:
                num_new += 1
                num_read += span.end - span.start
        return Load(len(self.spans) - num_new, num_read)

    @cached_property
    def sampling(self) -> SamplingArrays:
        """Sampling options, seeds and positions of the answered spans, made when asked for."""
        return SamplingArrays.of([span.request for span in self.answering])
