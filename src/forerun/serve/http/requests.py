"""Bodies as they come in: bounded, in time, and JSON objects or nothing."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any

from forerun.serve.admission.errors import ApiError
from forerun.serve.http.bounds import Bounds

if TYPE_CHECKING:  # batch jobs parse lines with this file, and need no server
    from starlette.requests import Request

MOST_DISCARDED = 128 * 2**20
"""Bytes of a body that is too large which are read before the answer: a client that is still
sending when the connection closes would not see why."""


async def read_body(request: Request, bounds: Bounds) -> bytes:
    """A request's body, which says that it is JSON; parsing it may take long: see `Worker`."""
    _check_content_type(request.headers.get("content-type", ""))
    try:
        async with asyncio.timeout(bounds.body_seconds):
            return await _read_bytes(request, bounds.max_body_bytes)
    except TimeoutError as error:
        message = f"The body did not arrive within {bounds.body_seconds:g} seconds."
        raise ApiError(message, status=408, code="request_timeout") from error


def parse_object(body: bytes, max_values: int | None = None) -> dict[str, Any]:
    """A JSON object; what JSON has no meaning for is refused, and never guessed.

    max_values: a body that holds more is refused before it is parsed.
    """
    if max_values is not None and _has_more_values(body, max_values):
        message = f"The body holds more than the {max_values} JSON values that this server reads."
        raise ApiError(message, code="too_many_values")
    try:
        parsed = json.loads(
            body.decode("utf-8"), parse_constant=_no_constant, object_pairs_hook=_without_repeats
        )
        if b"\\u" in body:
            json.dumps(parsed, ensure_ascii=False).encode("utf-8")  # no halves of characters
    except RecursionError as error:
        raise _no_json("it is nested too deeply") from error
    except UnicodeEncodeError as error:
        raise _no_json("a text in it has a lone surrogate, half of a character") from error
    except UnicodeDecodeError as error:
        raise _no_json("it is no UTF-8") from error
    except json.JSONDecodeError as error:
        raise _no_json(f"{error.msg} at character {error.pos}") from error
    except ValueError as error:  # a number with thousands of digits
        raise _no_json("a number in it is too long") from error
    if not isinstance(parsed, dict):
        raise _no_json("it is no object")
    return parsed


STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)


def _has_more_values(body: bytes, most: int) -> bool:
    """Values are told by their commas.  Most bodies are short of them even with those in texts."""
    num_strings = (body.count(b'"') - body.count(b'\\"')) // 2
    if num_strings > 2 * most:  # of names and of values
        return True
    return body.count(b",") >= most and STRING.sub(b"", body).count(b",") >= most


def _check_content_type(header: str) -> None:
    """Also what keeps web pages of other origins out: browsers ask before they send this type."""
    kind, _, parameters = header.partition(";")
    charset = parameters.lower().replace(" ", "").replace('"', "")
    if kind.strip().lower() != "application/json" or charset not in ("", "charset=utf-8"):
        message = "The body must be JSON: send 'Content-Type: application/json'."
        raise ApiError(message, status=415, code="unsupported_media_type")


async def _read_bytes(request: Request, most: int) -> bytes:
    declared = request.headers.get("content-length", "")
    is_too_large = declared.isdigit() and int(declared) > most
    stream = request.stream()
    chunks: list[bytes] = []
    size = 0
    if not is_too_large:
        async for chunk in stream:
            size += len(chunk)
            is_too_large = size > most
            if is_too_large:
                break
            chunks.append(chunk)
    if is_too_large:
        chunks.clear()
        if request.headers.get("expect", "").lower() != "100-continue":
            await _discard(stream)
        message = f"The body is larger than the {most} bytes that this server takes."
        raise ApiError(message, status=413, code="body_too_large")
    return b"".join(chunks)


async def _discard(stream: AsyncIterator[bytes]) -> None:
    size, began = 0, time.monotonic()
    async for chunk in stream:
        size += len(chunk)
        if size > MOST_DISCARDED or time.monotonic() - began > 10:
            return


def _no_constant(name: str) -> Any:
    raise _no_json(f"{name} is no JSON number")


def _without_repeats(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    parsed = dict(pairs)
    if len(parsed) < len(pairs):
        raise _no_json("a key occurs twice in one object")
    return parsed


def _no_json(reason: str) -> ApiError:
    return ApiError(f"The body is not a valid JSON object: {reason}.", code="invalid_json")
