"""OpenAI's routes, and one of Anthropic's.

Those that generate text are `Route`s; the others are `Query` objects, answered without an engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from forerun.serve.admission.ask import Route
from forerun.serve.openai.offer import Offer
from forerun.serve.openai.openapi import Described, Document
from forerun.serve.openai.routes.chat import Chat
from forerun.serve.openai.routes.completions import Completions
from forerun.serve.openai.routes.messages import CountTokens, Messages
from forerun.serve.openai.routes.queries import Detokenize, Tokenize
from forerun.serve.openai.routes.responses import Responses


class Query(Protocol):
    """A route whose requests are answered at once, without an engine."""

    path: str  # Starlette's pattern
    method: str  # GET or POST

    def answer(self, body: Mapping[str, Any], **path_parameters: str) -> Mapping[str, Any]:
        """The body of the response; raises an `ApiError`. For GET requests the body is empty."""
        ...


class TextRoute(Route, Described, Protocol):
    """A route that generates text."""

    def check(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Check the fields of a body, without the tokenizer; `read` does the rest."""
        ...


def text_routes(offer: Offer) -> list[TextRoute]:
    """The routes that generate text."""
    return [Completions(offer), Chat(offer), Responses(offer), Messages(offer)]


def queries(offer: Offer, *, has_keys: bool = False) -> list[Query]:
    """The routes that are answered at once. has_keys: whether clients need a key."""
    tokens = (Tokenize(offer), Detokenize(offer), CountTokens(offer))
    described: list[Described] = [*text_routes(offer), *tokens]
    return [*tokens, Document(described, has_keys=has_keys)]
