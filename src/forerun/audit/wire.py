"""One HTTP exchange: what is sent, what comes back, and who carries it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from forerun.base.errors import ForerunError

DONE = "[DONE]"
"""The last event of a stream."""


class EndpointError(ForerunError, RuntimeError):
    """The endpoint cannot be reached, or what it answers cannot be read."""


@dataclass(frozen=True)
class Call:
    """A request; path is relative to the server's root, body is JSON."""

    method: str
    path: str
    body: Mapping[str, Any] | None = None

    @property
    def is_streamed(self) -> bool:
        """Whether the answer is asked for in events."""
        return bool(self.body and self.body.get("stream"))


@dataclass(frozen=True)
class Raw:
    """A response as it came.

    body: JSON, or the text where it is none.  events: for a stream, seconds since the request
    was sent and JSON of each event.
    """

    status: int
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)  # names in lower case
    events: tuple[tuple[float, Any], ...] = ()
    seconds: float = 0.0


class Transport(Protocol):
    """Whoever carries calls to an endpoint; used from several threads at once."""

    def send(self, call: Call) -> Raw: ...
