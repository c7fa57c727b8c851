"""Lines of JSON between rank 0 and another rank; the connection shows whether both are alive.

When a process ends, however it ends, its connections close.  So the end of the stream says that the
other rank is gone, and no rank has to send signs of life.
"""

from __future__ import annotations

import json
import socket
from contextlib import suppress
from typing import Any

KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
"""Socket options that make a connection fail after 10 + 3 * 5 seconds if the other host is gone,
since a host without power closes no connections."""


class Wire:
    """One end of a connection."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEPALIVE.items():
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        self._connection = connection
        self._lines = connection.makefile("rb")

    def send(self, message: Any) -> None:
        """Send a message.  If the other end is gone, nothing happens; `receive` shows that."""
        with suppress(OSError):
            self._connection.sendall(encoded(message))

    def receive(self, seconds: float | None = None) -> Any:
        """The next message; None if the other end is gone, or sends nothing for `seconds`."""
        self._connection.settimeout(seconds)
        try:
            line = self._lines.readline()
        except (OSError, ValueError):  # lost, or closed at this end
            return None
        return json.loads(line) if line.endswith(b"\n") else None

    def is_closed(self) -> bool:
        """Whether the other end is gone and no message is left to receive."""
        try:
            return not self._connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def close(self) -> None:
        """Close this end, which the other end receives as the end of the stream."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()


def encoded(message: Any) -> bytes:
    """A message as a line of JSON.  It must not be `None`; NumPy's integers are allowed."""
    return json.dumps(message, separators=(",", ":"), default=int).encode() + b"\n"
