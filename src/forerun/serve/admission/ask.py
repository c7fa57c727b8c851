"""A client's request in our own checked form (`Ask`), and the interface of routes that answer
it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from forerun.engine.answer_options import AnswerOptions
from forerun.engine.results import Generation, Piece, TokenLogprob


@dataclass(frozen=True)
class Speculation:
    """How guesses are drafted for a request. Under `match` this never changes the text.

    drafter: one of the names the server was started with; None for its first.
    rule: None for the server's default.
    """

    drafter: str | None = None
    rule: str | None = None


@dataclass(frozen=True)
class Ask:
    """A client's request: `n` answers to each of its prompts.

    options: for all answers; they contain a seed, which the server draws if the client gave none.
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
    """Writes the answer to one request in a route's own format; made once per request."""

    def whole(self, answers: Sequence[Generation]) -> dict[str, Any]:
        """The body of a response that is not streamed. answers: by choice."""
        ...

    def opening(self) -> Sequence[Mapping[str, Any]]:
        """The events to send before the first piece."""
        ...

    def piece(self, choice: int, piece: Piece) -> Sequence[Mapping[str, Any]]:
        """The events for one new piece of a choice."""
        ...

    def closing(self, answers: Sequence[Generation]) -> Sequence[Mapping[str, Any]]:
        """The events to send after the last piece, including those with token counts."""
        ...


@runtime_checkable
class ScoredReply(Reply, Protocol):
    """A reply that can include log-probabilities of the prompts' own tokens."""

    def score(self, prompts: Sequence[Sequence[TokenLogprob]]) -> None:
        """Receive the log-probabilities of each prompt's tokens except the first; called once,
        before all other methods."""
        ...


class Route(Protocol):
    """A route of the server: reads request bodies and formats replies."""

    path: str

    def read(self, body: Mapping[str, Any]) -> Ask:
        """Check a body and turn it into an `Ask`; raises an `ApiError` that names the field at
        fault."""
        ...

    def reply(self, ask: Ask, request_id: str, created: int, fingerprint: str) -> Reply: ...
