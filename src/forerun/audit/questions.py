"""The questions of an audit and their answers, independent of an endpoint's format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from forerun.audit.bins import Key
from forerun.base.errors import ForerunError

NUM_TOP = 20
"""The number of likeliest tokens to request: the most that OpenAI's chat route allows."""


@dataclass(frozen=True)
class Question:
    """A prompt, perhaps with the beginning of its answer, and how to continue.

    prefix: the texts of answer tokens that are already given.
    """

    prompt: str
    max_tokens: int
    prefix: tuple[Key, ...] = ()
    prefix_ids: tuple[int, ...] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    wants_logprobs: bool = True
    n: int = 1
    is_streamed: bool = False
    echoes: bool = False  # tell the tokens of prompt and prefix too, with their log-probabilities
    stop: tuple[str, ...] = ()

    @property
    def cost(self) -> int:
        """The most tokens that the answer may generate."""
        return self.n * self.max_tokens


@dataclass(frozen=True)
class Token:
    """One generated token as the endpoint reports it."""

    text: Key
    logprob: float
    top: Mapping[Key, float]  # log-probabilities of the likeliest
    id: int | None = None


@dataclass(frozen=True)
class Choice:
    """One of the texts of an answer, and why it ended."""

    text: str
    tokens: tuple[Token, ...] | None  # None without log-probabilities
    reason: str | None


@dataclass(frozen=True)
class Chunk:
    """A part of a stream: when it came, its choice, and how much it contained."""

    seconds: float
    choice: int
    num_characters: int
    num_tokens: int | None


@dataclass(frozen=True)
class Answer:
    """The answer to a question, joined if it was streamed."""

    choices: tuple[Choice, ...]
    num_prompt_tokens: int | None
    num_tokens: int | None  # generated, as the endpoint counts
    model: str | None
    fingerprint: str | None
    chunks: tuple[Chunk, ...]
    seconds: float
    extras: Mapping[str, Any]  # the last body, for what only some servers tell

    @property
    def text(self) -> str:
        """The text of the first choice."""
        return self.choices[0].text


class RefusedError(ForerunError):
    """The endpoint answered a valid request with a 4xx error."""

    def __init__(self, status: int, message: str) -> None:
        """message: the reason that the endpoint gave."""
        super().__init__(f"status {status}: {message}")
        self.status = status
        self.reason = message
