"""One request: its prompt and options, and the answer so far."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from typing import Any

import numpy as np

from forerun.base.arrays import HostArray
from forerun.engine.answer_options import AnswerOptions
from forerun.engine.results import Fate, Generation, Stats, TokenLogprob
from forerun.engine.text import TextStream, token_text
from forerun.sampling.options import Bans, Law, Sampling, law

Report = Callable[[int, int], TokenLogprob]
"""A function (token, count) that returns the token's log-probability and those of the `count`
likeliest tokens at that position."""


class Status(Enum):
    """The stages of a request."""

    WAITING = "waiting"  # for a row
    READING = "reading"  # its text is being fed, and no token has been given to it yet
    ANSWERING = "answering"
    ENDED = "ended"


@dataclass(eq=False)
class Request:
    """A prompt, its options, and the state of its answer."""

    index: int  # its place among the prompts of the call
    sample: int  # its place among the samples of its prompt
    prompt: list[int]
    options: AnswerOptions
    sampling: Sampling  # of the options, its grammar with a matcher of the request's own
    limit: int  # tokens to generate at most
    limit_reason: str  # "length" or "context"
    endings: tuple[int, ...]  # tokens that end the text
    bans: Bans
    text: TextStream | None = None
    given: Sequence[int] = ()  # output that exists already: the request goes on after it
    deadline: float | None = None  # by the engine's clock

    number: int = -1  # given by the engine
    num_read_before: int = 0  # prompt tokens that its engine had read when it came
    num_rounds_before: int = 0  # of its own, when it last went back to the queue
    has_row: bool = False
    tokens: list[int] = field(default_factory=list)  # prompt and output
    fates: list[Fate] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    stats: Stats = field(default_factory=Stats)
    finish_reason: str | None = None
    error: str | None = None
    cause: BaseException | None = None

    def __post_init__(self) -> None:
        self.tokens = [*self.prompt, *self.given]
        self.fates = [Fate.GIVEN] * len(self.given)
        self.seed = self.sampling.seed or 0
        self.owner, self.priority = self.options.owner, self.options.priority
        self.num_logprobs, self.logprobs_of = self.options.logprobs, self.options.logprobs_of
        length = self.options.draft_length
        self.draft_length = None if length == "auto" else length
        self.processors = [copy.deepcopy(processor) for processor in self.sampling.processors]

    @property
    def status(self) -> Status:
        """The stage that the request has reached, from the queue to its end."""
        if self.finish_reason is not None:
            return Status.ENDED
        if self.stats.rounds > self.num_rounds_before:
            return Status.ANSWERING
        return Status.READING if self.has_row else Status.WAITING

    @property
    def num_output(self) -> int:
        """The number of output tokens so far."""
        return len(self.tokens) - len(self.prompt)

    @property
    def output(self) -> list[int]:
        """The output tokens so far."""
        return self.tokens[len(self.prompt) :]

    @property
    def is_drafted_for(self) -> bool:
        """Whether a drafter may be asked for this request at all."""
        return self.draft_length != 0

    def most_guesses(self, length: int) -> int:
        """The smaller of `length` and the request's own draft length."""
        return length if self.draft_length is None else min(length, self.draft_length)

    @cached_property
    def reads_text(self) -> bool:
        """Whether the law at a position depends on earlier tokens not only through the logits."""
        sampling = self.sampling
        penalties = sampling.presence_penalty or sampling.frequency_penalty
        return bool(
            sampling.repetition_penalty != 1
            or penalties
            or sampling.min_tokens
            or self.bans.words
            or sampling.grammar is not None
            or self.processors
        )

    @cached_property
    def takes_largest(self) -> bool:
        """Whether the next token is simply the one with the largest logit."""
        sampling = self.sampling
        return sampling.temperature == 0 and not sampling.logit_bias and not self.reads_text

    def law(self, logits: HostArray, drafted: Sequence[int], processors: Sequence[Any]) -> Law:
        """The law after the text and the given draft tokens."""
        output = [*self.output, *drafted] if self.reads_text else []
        return law(self.sampling, logits, self.prompt, output, self.bans, processors)

    def commit(
        self, tokens: Sequence[int], num_accepted: int, refused: bool, reports: Sequence[Report]
    ) -> int:
        """Append a round's tokens up to where plain decoding would have stopped.

        refused: whether there were guesses for the position of the last token, none of which was
        accepted. reports: one per token, if log-probabilities are wanted. Returns how many tokens
        were kept.
        """
        last = Fate.CORRECTION if refused else Fate.BONUS
        for slot, token in enumerate(tokens):
            told = []
            if self.num_logprobs is not None:
                tokenizer = None if self.text is None else self.text.tokenizer
                logprob = reports[slot](token, self.num_logprobs)
                told = [logprob if tokenizer is None else with_texts(logprob, tokenizer)]
            stopped = self.text is not None and self.text.push(token)
            self.tokens.append(token)  # only now: a token without a text is none of the answer
            self.fates.append(Fate.ACCEPTED if slot < num_accepted else last)
            self.logprobs += told
            self.finish_reason = self._ended(token, stopped)
            if self.finish_reason is not None:
                return slot + 1
        return len(tokens)

    def fail(self, message: str, cause: BaseException) -> None:
        """End the request with an error; the text so far stays."""
        self.finish_reason, self.error, self.cause = "error", message, cause

    def _ended(self, token: int, stopped: bool) -> str | None:
        """The reason why the text ends with this token; None if it goes on."""
        if token in self.endings:
            return "stop"
        if stopped:
            return "stop_string"
        return self.limit_reason if self.num_output >= self.limit else None

    def generation(self) -> Generation:
        """The answer so far; it is incomplete if the request was cancelled or failed."""
        if self.text is not None:
            self.text.release(final=True)
        return Generation(
            prompt_tokens=self.prompt,
            tokens=self.output,
            text=None if self.text is None else self.text.shown,
            finish_reason=self.finish_reason or "cancelled",
            seed=self.seed,
            stats=self.stats,
            fates=self.fates,
            logprobs=None if self.num_logprobs is None else self.logprobs,
            error=self.error,
        )


def report_of(logits: HostArray) -> Report:
    """A function that computes the log-probabilities reported for a position with these logits
    (V,)."""
    return lambda token, num_top: token_logprob(token, logits, num_top)


def token_logprob(token: int, logits: HostArray, num_top: int) -> TokenLogprob:
    """The token's log-probability under logits (V,), with those of the `num_top` likeliest
    tokens."""
    highest = float(logits.max())
    total = highest + math.log(np.exp(logits - highest).sum(dtype=np.float64))
    likely: list[int] = []
    if num_top:
        num_top = min(num_top, len(logits))
        least = np.partition(logits, -num_top)[-num_top]
        ids = np.flatnonzero((logits >= least) & (logits > -np.inf))
        likely = ids[np.argsort(-logits[ids], kind="stable")][:num_top].tolist()
    top = tuple((index, float(logits[index]) - total) for index in likely)
    return TokenLogprob(token, float(logits[token]) - total, top)


def with_texts(told: TokenLogprob, tokenizer: Any) -> TokenLogprob:
    """A copy of `told` that also has the text of each token."""
    texts = [token_text(tokenizer, token) for token in (told.token, *(one for one, _ in told.top))]
    return replace(told, text=texts[0], top_texts=tuple(texts[1:]))
