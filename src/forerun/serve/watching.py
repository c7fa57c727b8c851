"""Everybody who is told of requests: metrics, the log, and traces where they are installed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from forerun.engine.results import Generation, Piece, Stats
from forerun.serve.logs import AnswerLog
from forerun.serve.metrics import Metrics
from forerun.serve.tracing import make_tracing
from forerun.serve.watcher import Counts


class Listener(Protocol):
    """Hears of requests beside the metrics."""

    def received(self, request_id: str, route: str, owner_label: str = "") -> None: ...
    def refused(self, reason: str, request_id: str | None = None) -> None: ...
    def piece(self, request_id: str, choice: int, piece: Piece) -> None: ...
    def ended(self, request_id: str, answers: Sequence[Generation]) -> None: ...
    def failed(self, request_id: str, reason: str) -> None: ...
    def engine_restarted(self) -> None: ...


def make_watching(*, model: str, drafter: str, rule: str) -> Watching:
    """Metrics, log lines, and spans if OpenTelemetry is installed."""
    tracing = make_tracing(model)
    listeners: list[Listener] = [AnswerLog(), *([] if tracing is None else [tracing])]
    return Watching(Metrics(model=model, drafter=drafter, rule=rule), *listeners)


class Watching:
    """Passes on what it is told."""

    def __init__(self, metrics: Metrics, *listeners: Listener) -> None:
        self.metrics = metrics
        self._listeners = listeners

    def watch(self, desk: Counts) -> None:
        self.metrics.watch(desk)

    def received(self, request_id: str, route: str, owner_label: str = "") -> None:
        self.metrics.received(request_id, route, owner_label)
        for listener in self._listeners:
            listener.received(request_id, route, owner_label)

    def refused(self, reason: str, request_id: str | None = None) -> None:
        self.metrics.refused(reason, request_id)
        for listener in self._listeners:
            listener.refused(reason, request_id)

    def started(self, request_id: str) -> None:
        self.metrics.started(request_id)

    def piece(self, request_id: str, choice: int, piece: Piece, stats: Stats | None = None) -> None:
        self.metrics.piece(request_id, choice, piece, stats)
        for listener in self._listeners:
            listener.piece(request_id, choice, piece)

    def ended(self, request_id: str, answers: Sequence[Generation]) -> None:
        self.metrics.ended(request_id, answers)
        for listener in self._listeners:
            listener.ended(request_id, answers)

    def failed(self, request_id: str, reason: str) -> None:
        self.metrics.failed(request_id, reason)
        for listener in self._listeners:
            listener.failed(request_id, reason)

    def engine_restarted(self) -> None:
        self.metrics.engine_restarted()
        for listener in self._listeners:
            listener.engine_restarted()

    def exposition(self, accept: str = "") -> tuple[bytes, str]:
        return self.metrics.exposition(accept)

    def summary(self) -> dict[str, float | int | None]:
        return self.metrics.summary()
