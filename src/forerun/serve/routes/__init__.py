"""OpenAI's routes.  Those that generate text are `Route`s; the others answer at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from forerun.serve.ask import Route
from forerun.serve.objects import Object
from forerun.serve.offer import Offer
from forerun.serve.routes.chat import Chat
from forerun.serve.routes.completions import Completions
from forerun.serve.routes.models import Models as Models
from forerun.serve.routes.responses import Responses
from forerun.serve.routes.tokens import Detokenize, Tokenize


class Described(Route, Protocol):
    """A route whose body is described by a table of fields."""

    body: Object


class Direct(Protocol):
    """A route that needs no engine."""

    path: str
    body: Object

    def answer(self, body: Mapping[str, Any]) -> dict[str, Any]: ...


def text_routes(offer: Offer) -> list[Described]:
    """The routes that generate text."""
    return [Completions(offer), Chat(offer), Responses(offer)]


def direct_routes(offer: Offer) -> list[Direct]:
    """The routes that answer without generating."""
    return [Tokenize(offer), Detokenize(offer)]
