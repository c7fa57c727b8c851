"""OpenAI's routes, and one of Anthropic's.

Those that generate text are `Route`s, the others answer a `Query` at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from forerun.serve.admission.ask import Route
from forerun.serve.openai.offer import Offer
from forerun.serve.openai.openapi import Described, Document
from forerun.serve.openai.query import Query
from forerun.serve.openai.routes.chat import Chat
from forerun.serve.openai.routes.completions import Completions
from forerun.serve.openai.routes.messages import CountTokens, Messages
from forerun.serve.openai.routes.models import Models, OneModel
from forerun.serve.openai.routes.responses import Responses
from forerun.serve.openai.routes.tokens import Detokenize, Tokenize


class TextRoute(Route, Described, Protocol):
    """A route that generates text."""

    def check(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of a body, checked as far as it takes no tokenizer; `read` does the rest."""
        ...


def text_routes(offer: Offer) -> list[TextRoute]:
    """The routes that generate text."""
    return [Completions(offer), Chat(offer), Responses(offer), Messages(offer)]


def queries(offer: Offer, created: int, *, has_keys: bool = False) -> list[Query]:
    """The routes that answer at once.

    created: when the server started, in seconds since 1970.  has_keys: whether clients need one.
    """
    tokens = (Tokenize(offer), Detokenize(offer), CountTokens(offer))
    described: list[Described] = [*text_routes(offer), *tokens]
    document = Document(described, has_keys=has_keys)
    return [Models(offer, created), OneModel(offer, created), *tokens, document]
