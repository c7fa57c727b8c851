"""What the desk and the app tell about requests, to whoever counts and logs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from forerun.engine.results import Generation, Piece, Stats


class Counts(Protocol):
    """What gauges read of a desk."""

    @property
    def num_running(self) -> int: ...
    @property
    def num_waiting(self) -> int: ...
    @property
    def num_rows(self) -> int: ...


class Watcher:
    """Hears of every request, in the event loop's thread; this one does nothing.

    A request that is taken in: `received`, `started` when it is given a row, `piece` for each
    piece, and in the end either `ended` or `failed`.  One that is not: `refused`.  Metrics, log and
    traces override what they need.
    """

    def watch(self, desk: Counts) -> None:
        """Whose gauges to show; called once, before the first request."""

    def received(
        self, request_id: str, route: str, owner_label: str = "", seconds: float = 0.0
    ) -> None:
        """A request was read.

        owner_label: the name of its key, where names are configured.  seconds: since its headers
        arrived.
        """

    def refused(self, reason: str, request_id: str | None = None) -> None:
        """A request was sent away: the queue is full, its key unknown, a field wrong."""

    def started(self, request_id: str) -> None:
        """The first row was given to a request."""

    def piece(self, request_id: str, choice: int, piece: Piece, stats: Stats | None = None) -> None:
        """An answer went on.

        stats: what its present engine has counted so far, in its own thread.
        """

    def ended(self, request_id: str, answers: Sequence[Generation]) -> None:
        """A request has its answers, whole or cut short."""

    def failed(self, request_id: str, reason: str) -> None:
        """A request ended with an error of its own."""

    def engine_restarted(self) -> None:
        """A dead engine was replaced."""

    def exposition(self, accept: str = "") -> tuple[bytes, str]:
        """The body of /metrics, and its content type; accept: the header of that name."""
        return b"", "text/plain; charset=utf-8"

    def summary(self) -> Mapping[str, Any]:
        """The body of /v1/stats."""
        return {}
