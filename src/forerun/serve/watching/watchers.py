"""Everybody who is told of requests: metrics, the log, and traces where they are installed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from forerun.engine.results import Generation, Piece, Stats
from forerun.serve.watching.logs import AnswerLog
from forerun.serve.watching.metrics import Metrics
from forerun.serve.watching.roles import Counts, Watcher
from forerun.serve.watching.tracing import make_tracing


def make_watching(*, model: str, drafter: str, rule: str) -> Watching:
    """Metrics, log lines, and spans if OpenTelemetry is installed."""
    tracing = make_tracing(model)
    others: list[Watcher] = [AnswerLog(), *([] if tracing is None else [tracing])]
    return Watching(Metrics(model=model, drafter=drafter, rule=rule), *others)


class Watching(Watcher):
    """Passes on what it is told; the metrics answer /metrics and /v1/stats."""

    def __init__(self, metrics: Metrics, *others: Watcher) -> None:
        self.metrics = metrics
        self._watchers: tuple[Watcher, ...] = (metrics, *others)

    def watch(self, desk: Counts) -> None:
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

    def ended(self, request_id: str, answers: Sequence[Generation]) -> None:
        for watcher in self._watchers:
            watcher.ended(request_id, answers)

    def failed(self, request_id: str, reason: str) -> None:
        for watcher in self._watchers:
            watcher.failed(request_id, reason)

    def engine_restarted(self) -> None:
        for watcher in self._watchers:
            watcher.engine_restarted()

    def exposition(self, accept: str = "") -> tuple[bytes, str]:
        return self.metrics.exposition(accept)

    def summary(self) -> Mapping[str, Any]:
        return self.metrics.summary()
