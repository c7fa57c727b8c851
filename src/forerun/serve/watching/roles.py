"""What the desk and the app tell about requests, to whoever counts, logs and traces them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from forerun.engine.results import Generation, Piece, Stats


class Counts(Protocol):
    """The counts of a desk that gauges read."""

    @property
    def num_running(self) -> int: ...
    @property
    def num_waiting(self) -> int: ...
    @property
    def num_rows(self) -> int: ...


class Watcher:
    """Is called for every event of a request, in the event loop's thread; this base class does
    nothing.

    A request that is taken in: `received`, `started` when it is given a row, `piece` for each
    piece, and in the end either `ended` or `failed`.  One that is not: `refused`.  Metrics, log and
    traces override what they need.
    """

    def watch(self, desk: Counts | None) -> None:
        """Show the gauges of this desk; None when the model is no longer loaded."""

    def received(
        self, request_id: str, route: str, owner_label: str = "", seconds: float = 0.0
    ) -> None:
        """Called when a request has been read.

        owner_label: the name of its key, where names are configured.  seconds: since its headers
        arrived.
        """

    def refused(self, reason: str, request_id: str | None = None) -> None:
        """Called when a request is refused: the queue is full, its key unknown, a field wrong."""

    def started(self, request_id: str) -> None:
        """Called when the first row is given to a request."""

    def piece(self, request_id: str, choice: int, piece: Piece, stats: Stats | None = None) -> None:
        """Called when an answer goes on.

        stats: what its present engine has counted so far, in its own thread.
        """

    def judged(self, request_id: str, kind: str, answers: Sequence[Generation]) -> None:
        """Called when a request has its answers, before `ended`.

        kind: what its acceptance can be compared by: its drafter, rule and way to choose tokens.
        """

    def ended(self, request_id: str, answers: Sequence[Generation]) -> None:
        """Called when a request has its answers, whole or cut short."""

    def failed(self, request_id: str, reason: str) -> None:
        """Called when a request has ended with an error of its own."""

    def engine_restarted(self) -> None:
        """Called when a dead engine has been replaced."""

    def exposition(self, accept: str = "", prefix: str = "") -> tuple[bytes, str]:
        """The body of /metrics, and its content type.

        accept: the header of that name.  prefix: of the names of metrics, instead of ours.
        """
        return b"", "text/plain; charset=utf-8"

    def summary(self) -> Mapping[str, Any]:
        """The figures of the last seconds for one model, as in /v1/stats."""
        return {}

    def totals(self) -> Mapping[str, Any]:
        """The rates of all models of the server together."""
        return {}


class Watching(Watcher):
    """Passes every call on to several watchers; the metrics answer /metrics and /v1/stats."""

    def __init__(self, metrics: Watcher, *others: Watcher) -> None:
        self.metrics = metrics
        self._watchers: tuple[Watcher, ...] = (metrics, *others)

    def watch(self, desk: Counts | None) -> None:
        for watcher in self._watchers:
            watcher.watch(desk)

    def received(
        self, request_id: str, route: str, owner_label: str = "", seconds: float = 0.0
    ) -> None:
        for watcher in self._watchers:
            watcher.received(request_id, route, owner_label, seconds)

    def refused(self, reason: str, request_id: str | None = None) -> None:
        for watcher in self._watchers:
            watcher.refused(reason, request_id)

    def started(self, request_id: str) -> None:
        for watcher in self._watchers:
            watcher.started(request_id)

    def piece(self, request_id: str, choice: int, piece: Piece, stats: Stats | None = None) -> None:
        for watcher in self._watchers:
            watcher.piece(request_id, choice, piece, stats)

    def judged(self, request_id: str, kind: str, answers: Sequence[Generation]) -> None:
        for watcher in self._watchers:
            watcher.judged(request_id, kind, answers)

    def ended(self, request_id: str, answers: Sequence[Generation]) -> None:
        for watcher in self._watchers:
            watcher.ended(request_id, answers)

    def failed(self, request_id: str, reason: str) -> None:
        for watcher in self._watchers:
            watcher.failed(request_id, reason)

    def engine_restarted(self) -> None:
        for watcher in self._watchers:
            watcher.engine_restarted()

    def exposition(self, accept: str = "", prefix: str = "") -> tuple[bytes, str]:
        return self.metrics.exposition(accept, prefix)

    def summary(self) -> Mapping[str, Any]:
        return self.metrics.summary()

    def totals(self) -> Mapping[str, Any]:
        return self.metrics.totals()
