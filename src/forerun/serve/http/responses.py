"""Sends responses: JSON, errors, and event streams to clients that may be slow or disconnect."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Send

from forerun.serve.admission.errors import ApiError


def encoded(content: Mapping[str, Any]) -> bytes:
    """Compact JSON without NaN and infinities."""
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8")


def json_response(content: Mapping[str, Any], status: int = 200) -> Response:
    """A response with this JSON as its body."""
    return Response(encoded(content), status, media_type="application/json")


def error_response(error: ApiError) -> Response:
    """The HTTP response for an error."""
    response = json_response(error.body(), error.status)
    if error.retry_after is not None:
        response.headers["retry-after"] = str(max(1, math.ceil(error.retry_after)))
    if error.status == 401:
        response.headers["www-authenticate"] = "Bearer"
    return response


DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"  # a comment, which readers skip
HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # or nginx collects events before it passes them on
]


Item = TypeVar("Item")


class ReaderGoneError(Exception):
    """The client has not read what it was sent for too long."""


def events(contents: Iterable[Mapping[str, Any]]) -> bytes:
    """Server-sent events as bytes; an event that has a "type" is named after it."""
    lines = []
    for content in contents:
        if isinstance(name := content.get("type"), str):
            lines.append(b"event: " + name.encode() + b"\n")
        lines.append(b"data: " + encoded(content) + b"\n\n")
    return b"".join(lines)


class EventStream:
    """Sends events to a client, and gives up if it reads nothing for `patience` seconds."""

    def __init__(self, send: Send, patience: float) -> None:
        self._send = send
        self._patience = patience

    async def start(self) -> None:
        """Send the headers."""
        await self._pass({"type": "http.response.start", "status": 200, "headers": HEADERS})

    async def send(self, body: bytes) -> None:
        """Send events."""
        if body:
            await self._pass({"type": "http.response.body", "body": body, "more_body": True})

    async def end(self) -> None:
        """Send the end of the stream."""
        await self._pass({"type": "http.response.body", "body": b"", "more_body": False})

    async def _pass(self, message: dict[str, Any]) -> None:
        """Send a message; this waits while the connection's buffer is full."""
        try:
            async with asyncio.timeout(self._patience):
                await self._send(message)
        except TimeoutError as error:
            raise ReaderGoneError from error


async def with_pauses(items: AsyncIterator[Item], seconds: float) -> AsyncIterator[Item | None]:
    """Yield the items, and None whenever no item arrived for this many seconds."""

    async def step() -> Item:
        return await anext(items)

    while True:
        task = asyncio.create_task(step())
        try:
            while not (await asyncio.wait({task}, timeout=seconds))[0]:
                yield None
            item = task.result()
        except StopAsyncIteration:
            return
        finally:
            task.cancel()
        yield item


async def disconnected(receive: Receive) -> None:
    """Wait until the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass
