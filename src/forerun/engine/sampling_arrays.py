"""The sampling options of several requests as arrays, for executors that sample on a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from forerun.base.arrays import HostArray
from forerun.engine.request import Request


@dataclass(frozen=True)
class SamplingArrays:
    """One entry per request, (A,).

    Temperature, top_k, top_p and min_p say all there is to a row of which no flag below is set.
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
        """Whether something beyond temperature, top_k, top_p and min_p is wanted, (A,)."""
        return np.asarray(
            self.calls_python
            | self.edits_logits
            | self.counts_tokens
            | self.delays_end
            | self.reports_logprobs
        )

    @classmethod
    def of(cls, requests: Sequence[Request]) -> SamplingArrays:
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
