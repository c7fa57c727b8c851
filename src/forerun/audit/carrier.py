"""Carries calls over HTTP(S) with the standard library."""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

from forerun.audit.wire import DONE, Call, EndpointError, Raw
from forerun.base.errors import InputError, explain


class Http:
    """One kept connection per thread; `send` may be called from several."""

    def __init__(self, url: str, *, key: str | None = None, timeout: float = 120.0) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            cure = "Write it as http://host:port/v1 or https://host/v1."
            raise InputError(explain("That is no address of an endpoint.", repr(url), cure))
        self._parts, self._key, self._timeout = parts, key, timeout
        self._local = threading.local()

    def send(self, call: Call) -> Raw:
        started = time.perf_counter()
        try:
            return self._exchange(call, started)
        except ssl.SSLError as error:
            self._forget()
            cure = "Check the certificate, or use http:// if the server speaks no TLS."
            raise EndpointError(explain("TLS failed.", error, cure)) from error
        except (OSError, HTTPException) as error:
            self._forget()
            where = f"{self._parts.scheme}://{self._parts.netloc}"
            received = f"{type(error).__name__}: {error}"
            cure = f"Check that a server listens at {where}."
            raise EndpointError(
                explain("The endpoint cannot be reached.", received, cure)
            ) from error

    def _exchange(self, call: Call, started: float) -> Raw:
        connection = self._connection()
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if call.is_streamed:
            headers["Accept"] = "text/event-stream"
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        data = None if call.body is None else json.dumps(call.body).encode()
        connection.request(call.method, call.path, data, headers)
        response = connection.getresponse()
        named = {name.lower(): value for name, value in response.getheaders()}
        kind = named.get("content-type", "")
        if response.status == 200 and kind.startswith("text/event-stream"):
            events = tuple(_events(response, started))
            return Raw(200, None, named, events, time.perf_counter() - started)
        text = response.read().decode(errors="replace")
        return Raw(response.status, _parsed(text), named, (), time.perf_counter() - started)

    def _connection(self) -> HTTPConnection:
        kept = getattr(self._local, "connection", None)
        if kept is None:
            make = HTTPSConnection if self._parts.scheme == "https" else HTTPConnection
            assert self._parts.hostname is not None, "checked when this was made"
            kept = make(self._parts.hostname, self._parts.port, timeout=self._timeout)
            self._local.connection = kept
        return kept

    def _forget(self) -> None:
        """The next call opens a connection of its own."""
        kept = getattr(self._local, "connection", None)
        if kept is not None:
            kept.close()
            self._local.connection = None


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _events(response: HTTPResponse, started: float) -> Iterator[tuple[float, Any]]:
    """Server-sent events with the time of each."""
    while line := response.readline():
        if line.startswith(b"data:"):
            text = line[5:].strip().decode(errors="replace")
            yield time.perf_counter() - started, DONE if text == DONE else _parsed(text)
