"""What the desk and the app tell about requests, to whoever counts, logs and traces them."""

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

    def watch(self, desk: Counts | None) -> None:
        """Whose gauges to show; None when the model is not loaded any more."""

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

    def judged(self, request_id: str, kind: str, answers: Sequence[Generation]) -> None:
        """A request has its answers; called before `ended`.

        kind: what its acceptance can be compared by: its drafter, rule and way to choose tokens.
        """

    def ended(self, request_id: str, answers: Sequence[Generation]) -> None:
        """A request has its answers, whole or cut short."""

    def failed(self, request_id: str, reason: str) -> None:
        """A request ended with an error of its own."""

    def engine_restarted(self) -> None:
        """A dead engine was replaced."""

    def exposition(self, accept: str = "", prefix: str = "") -> tuple[bytes, str]:
        """The body of /metrics, and its content type.

        accept: the header of that name.  prefix: of the names of metrics, instead of ours.
        """
        return b"", "text/plain; charset=utf-8"

    def summary(self) -> Mapping[str, Any]:
        """The last seconds of one model, as /v1/stats tells them."""
        return {}

    def totals(self) -> Mapping[str, Any]:
        """The rates of all models of the server together."""
        return {}


class Watching(Watcher):
    """Passes on what it is told; the metrics answer /metrics and /v1/stats."""

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
