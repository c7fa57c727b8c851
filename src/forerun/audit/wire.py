"""The HTTP exchanges of an audit: requests, responses, and what carries them.

`Http` needs only the standard library; `Polite` limits the rate and waits for busy servers.
"""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any, Protocol
from urllib.parse import urlsplit

from forerun.base.errors import ForerunError, InputError, explain

DONE = "[DONE]"
"""The last event of a stream."""
BUSY = (429, 503, 529)
"""Statuses of an endpoint that asks to be called again later."""
FIRST_WAIT = 1.0
LONGEST_WAIT = 60.0
"""The seconds to wait before a call is repeated: `FIRST_WAIT` at first, then doubled each time up
to `LONGEST_WAIT`."""


class EndpointError(ForerunError, RuntimeError):
    """The endpoint cannot be reached, or its answer cannot be read."""


@dataclass(frozen=True)
class Call:
    """An HTTP request. path is relative to the server's root, body is JSON."""

    method: str
    path: str
    body: Mapping[str, Any] | None = None

    @property
    def is_streamed(self) -> bool:
        """Whether the request asks for a stream of events."""
        return bool(self.body and self.body.get("stream"))


@dataclass(frozen=True)
class Raw:
    """A response as it was received.

    body: parsed JSON, or else the text.
    events: for a stream, the JSON of each event and its seconds since the request.
    """

    status: int
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)  # names in lower case
    events: tuple[tuple[float, Any], ...] = ()
    seconds: float = 0.0


class Transport(Protocol):
    """Carries requests to an endpoint; several threads use it at once."""

    def send(self, call: Call) -> Raw:
        """Send a request and return the response."""
        ...


class Http:
    """HTTP with one persistent connection per thread."""

    def __init__(self, url: str, *, key: str | None = None, timeout: float = 120.0) -> None:
        """url: of which scheme, host and port are used. key: sent as a bearer token. timeout: in
        seconds."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            cure = "Write it as http://host:port/v1 or https://host/v1."
            raise InputError(explain("That is no address of an endpoint.", repr(url), cure))
        self._parts, self._key, self._timeout = parts, key, timeout
        self._local = threading.local()

    def send(self, call: Call) -> Raw:
        """Send a request; any failure on the way raises an `EndpointError`."""
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
        """Send the request and read the whole response, event by event if it is a stream.

        started: the time from which the seconds of events are counted.
        """
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
        """This thread's connection, opened by its first request."""
        kept = getattr(self._local, "connection", None)
        if kept is None:
            make = HTTPSConnection if self._parts.scheme == "https" else HTTPConnection
            assert self._parts.hostname is not None, "checked when this was made"
            kept = make(self._parts.hostname, self._parts.port, timeout=self._timeout)
            self._local.connection = kept
        return kept

    def _forget(self) -> None:
        """Close this thread's connection, so that the next call opens a new one."""
        kept = getattr(self._local, "connection", None)
        if kept is not None:
            kept.close()
            self._local.connection = None


def _parsed(text: str) -> Any:
    """A body as parsed JSON, or as text if it is not JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _events(response: HTTPResponse, started: float) -> Iterator[tuple[float, Any]]:
    """The server-sent events of a response, each with its time."""
    while line := response.readline():
        if line.startswith(b"data:"):
            text = line[5:].strip().decode(errors="replace")
            yield time.perf_counter() - started, DONE if text == DONE else _parsed(text)


@dataclass
class Polite:
    """Sends at most `rate` requests per second, and repeats those that met a busy server or a lost
    connection.

    patience: how many times in a row a request is repeated.
    """

    transport: Transport
    rate: float = 20.0
    patience: int = 6
    sleep: Callable[[float], None] = time.sleep
    now: Callable[[], float] = time.monotonic
    waited: float = 0.0  # seconds, because the endpoint was busy
    _next: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def send(self, call: Call) -> Raw:
        """Send a request in its turn; repeat it while the endpoint is busy or does not answer."""
        wait = FIRST_WAIT
        for attempt in range(self.patience + 1):
            self._take_turn()
            is_last = attempt == self.patience
            try:
                raw = self.transport.send(call)
            except EndpointError:
                if is_last or attempt >= 2:
                    raise
                asked = None
            else:
                if raw.status not in BUSY:
                    return raw
                asked = retry_after(raw.headers)
                if is_last:
                    received = f"status {raw.status} {attempt + 1} times"
                    cure = (
                        "Try again later, or with a lower --rate; the journal keeps what is done."
                    )
                    raise EndpointError(explain("The endpoint stays busy.", received, cure))
            self._pause(wait if asked is None else asked)
            wait = min(2 * wait, LONGEST_WAIT)
        raise AssertionError("the last attempt returns or raises")

    def _take_turn(self) -> None:
        """Sleep until the rate allows another request."""
        with self._lock:
            start = max(self.now(), self._next)
            self._next = start + 1.0 / self.rate
        if (ahead := start - self.now()) > 0:
            self.sleep(ahead)

    def _pause(self, seconds: float) -> None:
        """Sleep, and add the seconds to the total."""
        self.waited += seconds
        self.sleep(seconds)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """The seconds that a Retry-After header asks for, as a number or as a date."""
    text = headers.get("retry-after")
    if text is None:
        return None
    try:
        return max(0.0, float(text))
    except ValueError:
        pass
    try:
        date = parsedate_to_datetime(text)
    except ValueError:
        return None
    return max(0.0, (date - datetime.now(UTC)).total_seconds())
