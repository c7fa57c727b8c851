"""What a client asks for, checked and in our own words, and how routes answer it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from forerun.engine.answer_options import AnswerOptions
from forerun.engine.results import Generation, Piece, TokenLogprob


@dataclass(frozen=True)
class Speculation:
    """How drafts are made for a request. Under `match` none of it changes the text.

    drafter: one of the names the server was started with; None for its first.
    rule: None for the server's own.
    """

    drafter: str | None = None
    rule: str | None = None


@dataclass(frozen=True)
class Ask:
    """One request of a client: `n` answers to each of its prompts.

    options: for all answers, with a seed: the server draws one where the client gave none.
    Choices are numbered prompt by prompt: choice i is sample i % n of prompt i // n.
    """

    prompts: Sequence[Sequence[int]]  # token ids
    options: AnswerOptions
    speculation: Speculation = field(default_factory=Speculation)
    is_streamed: bool = False
    includes_usage: bool = False  # a last chunk with the counts
    counts_in_chunks: bool = False  # and the counts so far in every chunk before it
    includes_fates: bool = False  # how each token came about
    scores_prompts: bool = False  # log-probabilities of the prompts' own tokens as well
    detail: Mapping[str, Any] = field(default_factory=dict)  # what only the route itself reads

    @property
    def n(self) -> int:
        """The number of answers to each prompt."""
        return self.options.sampling.n

    @property
    def num_choices(self) -> int:
        """The number of answers to all prompts."""
        return len(self.prompts) * self.n


class Reply(Protocol):
    """Words one answer in a route's own form; made once per request."""

    def whole(self, answers: Sequence[Generation]) -> dict[str, Any]:
        """The body of an answer that is not streamed; answers by choice."""
        ...

    def opening(self) -> Sequence[Mapping[str, Any]]:
        """Events before the first piece."""
        ...

    def piece(self, choice: int, piece: Piece) -> Sequence[Mapping[str, Any]]:
        """Events for a step of one choice."""
        ...

    def closing(self, answers: Sequence[Generation]) -> Sequence[Mapping[str, Any]]:
        """Events after the last piece, including those with the counts."""
        ...


@runtime_checkable
class ScoredReply(Reply, Protocol):
    """A reply that includes log-probabilities of the prompts."""

    def score(self, prompts: Sequence[Sequence[TokenLogprob]]) -> None:
        """Take the log-probabilities of each prompt's tokens but the first; called once, before all
        other methods."""
        ...


class Route(Protocol):
    """A route of the server that reads requests and words replies."""

    path: str

    def read(self, body: Mapping[str, Any]) -> Ask:
        """The checked request; an `ApiError` names the field that cannot be honoured."""
        ...

    def reply(self, ask: Ask, request_id: str, created: int, fingerprint: str) -> Reply: ...
