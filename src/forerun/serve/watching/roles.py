"""The interface through which the desk and the app report what happens to requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from forerun.engine.results import Generation, Piece, Stats


class Counts(Protocol):
    """The counts of a desk that metrics show as gauges."""

    @property
    def num_running(self) -> int: ...
    @property
    def num_waiting(self) -> int: ...
    @property
    def num_rows(self) -> int: ...


class Watcher:
    """Receives every event of a request, in the event loop's thread; this base class does nothing.

    An accepted request: `received`, `started` when it gets a row, `piece` for each piece, and in
    the end `ended` or `failed`. A refused one: `refused`. Metrics, logs and traces override what
    they need.
    """

    def watch(self, desk: Counts | None) -> None:
        """Set the desk whose counts are shown as gauges; None when its model is unloaded."""

    def received(
        self, request_id: str, route: str, owner_label: str = "", seconds: float = 0.0
    ) -> None:
        """Called when a request has been read.

        owner_label: the name of its key, if configured.
        seconds: the time since its headers arrived.
        """

    def refused(self, reason: str, request_id: str | None = None, owner_label: str = "") -> None:
        """Called when a request is refused, for example because the queue is full or its key is
        unknown. owner_label: the name of its key, if that is known."""

    def started(self, request_id: str) -> None:
        """Called when a request gets its first row."""

    def piece(self, request_id: str, choice: int, piece: Piece, stats: Stats | None = None) -> None:
        """Called for each new piece of an answer.

        stats: the counts of its present engine, whose thread may still be adding to them.
        """

    def judged(self, request_id: str, kind: str, answers: Sequence[Generation]) -> None:
        """Called when a request has its answers, before `ended`.

        kind: its drafter, rule and way of sampling; acceptance is compared within one kind.
        """

    def ended(self, request_id: str, answers: Sequence[Generation]) -> None:
        """Called when a request has its answers, complete or not."""

    def failed(self, request_id: str, reason: str) -> None:
        """Called when a request has ended with an error."""

    def engine_restarted(self) -> None:
        """Called when a failed engine has been replaced."""

    def exposition(self, accept: str = "", prefix: str = "") -> tuple[bytes, str]:
        """The body of /metrics, and its content type.

        accept: the Accept header.
        prefix: of the metrics' names, instead of ours.
        """
        return b"", "text/plain; charset=utf-8"

    def summary(self) -> Mapping[str, Any]:
        """The rates of the last seconds for one model, as in /v1/stats."""
        return {}

    def totals(self) -> Mapping[str, Any]:
        """The rates of all models of the server together."""
        return {}


class Watching(Watcher):
    """Passes every call on to several watchers; /metrics and /v1/stats come from the metrics."""

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

    def refused(self, reason: str, request_id: str | None = None, owner_label: str = "") -> None:
        for watcher in self._watchers:
            watcher.refused(reason, request_id, owner_label)

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
