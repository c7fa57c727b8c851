"""Limits connections: closes silent ones, makes room for new ones, and detects half-closed sockets.

If there are too many connections, idle ones are closed: first those that never sent a valid key, of
these the ones from the address with the most connections, and of these the longest idle.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import h11
from starlette.types import Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from forerun.serve.admission.errors import overloaded
from forerun.serve.admission.keys import ANYBODY
from forerun.serve.http.responses import PING, error_response

MOST_CONNECTIONS = 700
"""The most connections at once. A process may usually open 1024 files, and the model needs some of
them."""
MOST_PROBED = 50
"""If all connections are busy, this many more are accepted, which may only ask for the server's
health."""
MOST_AT_A_TIME = 200
"""The most connections that are accepted at once, before idle ones are closed to make room for
them."""
PROBES = ("/health", "/ready")
PROBE_SECONDS = 0.2


class Protocol(H11Protocol):  # type: ignore[misc]
    """uvicorn's HTTP/1.1 protocol, with limits: it closes connections whose headers do not arrive
    in time."""

    header_seconds = 15.0
    most_connections = MOST_CONNECTIONS
    _timer: asyncio.TimerHandle | None = None
    _probing: asyncio.TimerHandle | None = None
    _idle_since = 0.0
    _is_half_closed = False
    _streams = False

    @property
    def is_idle(self) -> bool:
        """Whether the connection has no request that waits for a response."""
        is_answered = self.cycle is None or self.cycle.response_complete
        return is_answered and self.conn.their_state is h11.IDLE

    @property
    def address(self) -> str:
        return str(self.client[0]) if self.client else ""

    @property
    def has_shown_a_key(self) -> bool:
        return self.scope is not None and self.scope["state"].get("key", ANYBODY) is not ANYBODY

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.app = self._answer_if_there_is_room
        self._idle_since = self.loop.time()
        self._wait_for_headers()
        self._make_room()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is h11.IDLE:
            self._wait_for_headers()
        else:
            self._stop_waiting()

    def eof_received(self) -> bool:
        """Called when the client sends no more. A client that awaits an answer may have closed only
        its sending half, or may be gone; sending something to it shows which."""
        cycle = self.cycle
        if self.transport.is_closing() or cycle is None or cycle.response_complete:
            return False
        if self.scheme == "https":  # TLS has no half-closed connections
            return False
        if not self._is_half_closed:
            is_asked = self.conn.their_state in (h11.DONE, h11.MUST_CLOSE)
            self._is_half_closed = is_asked and cycle.scope["http_version"] == "1.1"
            self._probe()
        return self._is_half_closed

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._idle_since = self.loop.time()
        if self._is_half_closed and self.cycle.response_complete:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        if self._probing is not None:
            self._probing.cancel()
        super().connection_lost(exc)

    def _probe(self) -> None:
        """Send what clients ignore: 100 Continue, and a comment in an event stream. If the client
        is gone, the second one ends the connection."""
        if not self._is_half_closed or self.cycle.response_complete:
            return
        if not self.cycle.response_started:
            ignored = self.conn.send(h11.InformationalResponse(status_code=100, headers=[]))
            self.transport.write(ignored)
        elif self._streams and self.conn.our_state is h11.SEND_BODY:
            self.transport.write(self.conn.send(h11.Data(data=PING)))
        self._probing = self.loop.call_later(PROBE_SECONDS, self._probe)

    def _make_room(self) -> None:
        """If there are too many connections, close the least valuable idle ones."""
        num_more = len(self.connections) - self.most_connections
        if num_more <= 0:
            return
        idle = [one for one in self.connections if one is not self and one.is_idle]
        counts = Counter(one.address for one in idle)
        spared = sorted(idle, key=lambda one: _worth(one, counts))[:num_more]
        if not spared and num_more > MOST_PROBED:
            spared = [self]
        for one in spared:
            self.connections.discard(one)
            one.transport.abort()

    async def _answer_if_there_is_room(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_on(message: Message) -> None:
            if message["type"] == "http.response.start":
                kinds = [value for name, value in message["headers"] if name == b"content-type"]
                self._streams = any(kind.startswith(b"text/event-stream") for kind in kinds)
            await send(message)

        if len(self.connections) <= self.most_connections or scope["path"] in PROBES:
            await self.config.loaded_app(scope, receive, send_on)
            return
        refusal = overloaded("All connections are busy. Try again in a few seconds.")
        await error_response(refusal)(scope, receive, send)

    def _wait_for_headers(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(self.header_seconds, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _worth(one: Protocol, counts: Counter[str]) -> tuple[bool, int, float]:
    """A sort key for idle connections; those to close first come first.

    counts: the number of idle connections of each address.
    """
    return one.has_shown_a_key, -counts[one.address], one._idle_since
