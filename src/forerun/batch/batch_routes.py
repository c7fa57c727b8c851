"""Chooses the route of a batch request, and finds errors that can be seen without the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forerun.batch.lines import BatchRequest
from forerun.serve.admission.errors import ApiError
from forerun.serve.openai.fingerprint import ModelCard
from forerun.serve.openai.offer import Offer
from forerun.serve.openai.routes import text_routes

ANY_TOKEN = 1 << 31
"""The vocabulary size to assume while the model is not loaded, so that no token id counts as too
large."""


def routed(request: BatchRequest, *, is_chat: bool) -> tuple[str, Mapping[str, Any]]:
    """The route of a request, and its body for that route. is_chat: treat a bare prompt as a user's
    message."""
    body = dict(request.body)
    if request.url is not None:
        return request.url, body
    if "messages" in body:
        return "/v1/chat/completions", body
    if not is_chat or not isinstance(body["prompt"], str):
        return "/v1/completions", body
    messages = [{"role": "user", "content": body.pop("prompt")}]
    return "/v1/chat/completions", {**body, "messages": messages}


def check_whole(*, is_streamed: bool) -> None:
    """Refuse a stream, because nobody would read it."""
    if is_streamed:
        message = "'stream' cannot be honoured in a batch. Leave it out."
        raise ApiError(message, param="stream", code="unsupported_parameter")


class Judge:
    """Finds requests that a job would refuse, before its model is loaded.

    name: the model's id. drafter: the job's drafter.
    """

    def __init__(self, name: str, drafter: str, *, is_raw: bool) -> None:
        unloaded: Any = ModelCard(name, ANY_TOKEN, None, object(), {}, "")
        offer = Offer(unloaded, name, tuple(dict.fromkeys((drafter, "none"))))
        self._routes = {route.path: route for route in text_routes(offer)}
        self._ways = (False,) if is_raw else (True, False)

    def why_not(self, request: BatchRequest) -> str | None:
        """The reason why a request would be refused; None if it would not be.

        Whether a bare prompt becomes a chat message depends on the model, so it is refused only if
        it would be wrong either way.
        """
        reasons = [self._reason(*routed(request, is_chat=is_chat)) for is_chat in self._ways]
        return reasons[0] if all(reasons) else None

    def _reason(self, url: str, body: Mapping[str, Any]) -> str | None:
        try:
            check_whole(is_streamed=self._routes[url].check(body)["stream"])
        except ApiError as error:
            return error.message
        return None
