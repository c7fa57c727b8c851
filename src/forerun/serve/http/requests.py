"""Reads the bodies of requests, with limits on size and time."""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

from starlette.requests import Request

from forerun.serve.admission.errors import ApiError, overloaded
from forerun.serve.http.worker import Turns
from forerun.serve.openai.objects import no_json


@dataclass(frozen=True)
class Bounds:
    """Limits on what a connection may cost; limits on the contents of requests are checked by
    routes."""

    max_body_bytes: int = 4 * 2**20
    max_values: int = 2**18  # numbers in a body; others cost more: see `parse_object`
    body_seconds: float = 30.0  # for a body to arrive
    read_seconds: float = 10.0  # for a request to be read: parsed, tokenised, its grammar compiled
    score_seconds: float = 120.0  # for the log-probabilities of prompts
    word_seconds: float = 60.0  # for a whole answer to be put into words
    max_alternatives: int = 1_000_000  # choices x tokens x likeliest tokens beside each
    ping_seconds: float = 15.0  # of silence, after which a stream says that it is there
    reader_seconds: float = 30.0  # for a client to take in what it was sent


MOST_DISCARDED = 128 * 2**20
"""If a body is too large, this many bytes of it are read before the refusal is sent, because a
client that is still sending when the connection closes would not see the reason."""

MOST_MEMBERS = 64
"""The most members of a gzipped body, because the rest of the body is copied for each of them."""

LARGE = 64 * 2**10
"""The size in bytes from which on a body is large: the rest of it is received only when its turn
comes."""

LARGE_BYTES_PER_SECOND = 8 * 2**20
"""The most bytes per second that are received of all large bodies together; more would take the
time that answering other requests needs."""

LONGEST_TURN = 1.0
"""The most seconds of a turn, even for a body that takes longer."""


class Bodies:
    """Receives the JSON bodies of requests. Parsing may take long and is left to `Worker`."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._turns = Turns()

    async def read(self, request: Request, owner: str) -> bytes:
        """Receive a request's body. Large bodies are received one after another, fairly among
        owners."""
        _check_content_type(request.headers.get("content-type", ""))
        is_packed = _is_packed(request.headers.get("content-encoding", ""))
        bounds, most = self._bounds, self._bounds.max_body_bytes
        try:
            async with asyncio.timeout(bounds.body_seconds):
                body = await self._bytes(request, owner)
                return await asyncio.to_thread(_unpacked, body, most) if is_packed else body
        except TimeoutError as error:
            message = f"The body did not arrive within {bounds.body_seconds:g} seconds."
            raise ApiError(message, status=408, code="request_timeout") from error

    async def _bytes(self, request: Request, owner: str) -> bytes:
        """The body as it was sent. The part beyond `LARGE` bytes waits for its turn, and a body
        that is too large is refused."""
        most = self._bounds.max_body_bytes
        declared = request.headers.get("content-length", "")
        length = int(declared[:12]) if declared.isdigit() else most
        stream = request.stream()
        chunks: list[bytes] = []
        size = 0
        if length <= most:
            async for chunk in stream:
                if size <= LARGE < size + len(chunk):
                    await self._take_turn(owner, length)
                size += len(chunk)
                if size > most:
                    break
                chunks.append(chunk)
        if max(size, length) > most:
            chunks.clear()
            if request.headers.get("expect", "").lower() != "100-continue":
                await self._take_turn(owner, length)
                await _discard(stream)
            raise _too_large(most)
        return b"".join(chunks)

    async def _take_turn(self, owner: str, size: int) -> None:
        """Wait until a large body may continue. The time waited counts towards its time limit."""
        try:
            async with asyncio.timeout(self._bounds.read_seconds), self._turns.turn(owner):
                await asyncio.sleep(min(size / LARGE_BYTES_PER_SECOND, LONGEST_TURN))
        except TimeoutError as error:
            message = "The server is busy with large requests. Try again in a few seconds."
            raise overloaded(message) from error


def _check_content_type(header: str) -> None:
    """Refuse other content types than JSON. This also keeps out web pages of other origins, because
    browsers ask for permission before they send JSON."""
    kind, _, parameters = header.partition(";")
    charset = parameters.lower().replace(" ", "").replace('"', "")
    if kind.strip().lower() != "application/json" or charset not in ("", "charset=utf-8"):
        message = "The body must be JSON: send 'Content-Type: application/json'."
        raise ApiError(message, status=415, code="unsupported_media_type")


def _is_packed(encoding: str) -> bool:
    """Whether a body is gzipped; any other encoding is refused."""
    if encoding.strip().lower() in ("gzip", "x-gzip"):
        return True
    if encoding.strip().lower() not in ("", "identity"):
        message = "The body's Content-Encoding is not known here. Send it as it is, or as gzip."
        raise ApiError(message, status=415, code="unsupported_encoding")
    return False


def _unpacked(body: bytes, most: int) -> bytes:
    """The contents of a gzipped body; refused if larger than a body may be."""
    parts: list[bytes] = []
    size = 0
    while body or not parts:
        if len(parts) == MOST_MEMBERS:
            raise no_json(f"its gzip has more than {MOST_MEMBERS} members")
        member = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
        try:
            parts.append(member.decompress(body, most - size + 1))
        except zlib.error as error:
            raise no_json("it is no gzip, which its Content-Encoding says") from error
        size += len(parts[-1])
        if size > most:
            raise _too_large(most)
        if not member.eof:
            raise no_json("its gzip ends too early")
        body = member.unused_data
    return b"".join(parts)


async def _discard(stream: AsyncIterator[bytes]) -> None:
    size, began = 0, time.monotonic()
    async for chunk in stream:
        size += len(chunk)
        if size > MOST_DISCARDED or time.monotonic() - began > 10:
            return


def _too_large(most: int) -> ApiError:
    message = f"The body is larger than the {most} bytes that this server takes."
    return ApiError(message, status=413, code="body_too_large")
