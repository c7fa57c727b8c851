"""Requests that nobody sent, read and answered before the server is ready.

What is loaded at its first use, the whole tokenizer and the grammar library, is loaded by them, so
that no client waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from forerun.base.errors import ForerunError
from forerun.serve.admission.admission import Desk
from forerun.serve.admission.ask import Ask, Route
from forerun.serve.admission.errors import ApiError
from forerun.serve.http.responses import json_response

NAME = "warm-up"
MESSAGES = [{"role": "user", "content": "Hello!"}]

ANSWERED: Mapping[str, Mapping[str, Any]] = {
    "/v1/completions": {"prompt": "Hello!", "max_tokens": 1},
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 1},
    "/v1/responses": {"input": "Hello!", "max_output_tokens": 16},
}
"""A body for each route, by its path."""

READ: Mapping[str, Mapping[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES, "response_format": {"type": "json_object"}},
}
"""Bodies that are only read: compiling a grammar is what takes long."""


async def rehearse(desk: Desk, routes: Sequence[Route], fingerprint: Callable[[Ask], str]) -> None:
    """Answer one request on every route, by the way that those of clients take.

    What the model cannot do is not rehearsed: without a chat template there are no chats.
    """
    for route in routes:
        for bodies, is_answered in ((ANSWERED, True), (READ, False)):
            if route.path in bodies:
                with suppress(ApiError, ForerunError):
                    ask = await asyncio.to_thread(route.read, bodies[route.path])
                    if is_answered:
                        await _answer(desk, route, ask, fingerprint)


async def _answer(desk: Desk, route: Route, ask: Ask, fingerprint: Callable[[Ask], str]) -> None:
    reply = route.reply(ask, NAME, 0, fingerprint(ask))
    answers = await desk.enter(ask, owner=NAME, request_id=NAME).results()
    await asyncio.to_thread(lambda: json_response(reply.whole(answers)))
