"""OpenTelemetry spans, one for each request, if opentelemetry-api is installed.

The operator configures where they are sent, for example with
`opentelemetry-instrument forerun serve`; otherwise the spans do nothing. Their attributes follow
OpenTelemetry's conventions for generative AI, with some of ours for speculation. They contain no
prompts or answers.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from forerun.base.version import __version__
from forerun.engine.results import Generation, Piece, Stats
from forerun.serve.watching.roles import Watcher


def make_tracing(model: str) -> Tracing | None:
    """A watcher that makes spans; None if OpenTelemetry is not installed."""
    try:
        from opentelemetry.trace import Status, StatusCode, get_tracer
    except ImportError:
        return None
    return Tracing(get_tracer("forerun", __version__), model, Status(StatusCode.ERROR))


class Tracing(Watcher):
    """Makes a span for each request, from its arrival to its end.

    failure: the status of spans whose request failed or was refused.
    """

    def __init__(self, tracer: Any, model: str, failure: Any) -> None:
        self._tracer = tracer
        self._failure = failure
        self._model = model
        self._spans: dict[str, Any] = {}
        self._begun: set[str] = set()  # requests with a token

    def received(
        self, request_id: str, route: str, owner_label: str = "", seconds: float = 0.0
    ) -> None:
        """Begin a span at the arrival of the request."""
        attributes = {
            "gen_ai.operation.name": "chat" if "chat" in route else "text_completion",
            "gen_ai.request.model": self._model,
            "http.route": route,
            "forerun.request_id": request_id,
        }
        self._spans[request_id] = self._tracer.start_span(
            f"answer {route}",
            attributes=attributes,
            start_time=time.time_ns() - int(1e9 * seconds),
        )

    def refused(self, reason: str, request_id: str | None = None, owner_label: str = "") -> None:
        self._fail(request_id or "", reason)

    def piece(self, request_id: str, choice: int, piece: Piece, stats: Stats | None = None) -> None:
        span = self._spans.get(request_id)
        if span is not None and piece.tokens and request_id not in self._begun:
            self._begun.add(request_id)
            span.add_event("first token")

    def ended(self, request_id: str, answers: Sequence[Generation]) -> None:
        """End the span, with the counts of the request."""
        span = self._pop(request_id)
        if span is None:
            return
        counts = {
            "gen_ai.usage.input_tokens": [len(answer.prompt_tokens) for answer in answers],
            "gen_ai.usage.output_tokens": [len(answer.tokens) for answer in answers],
            "forerun.rounds": [answer.stats.rounds for answer in answers],
            "forerun.drafted": [answer.stats.drafted for answer in answers],
            "forerun.accepted": [answer.stats.accepted for answer in answers],
        }
        span.set_attributes({name: sum(values) for name, values in counts.items()})
        reasons = [answer.finish_reason for answer in answers]
        span.set_attribute("gen_ai.response.finish_reasons", reasons)
        span.end()

    def failed(self, request_id: str, reason: str) -> None:
        self._fail(request_id, reason)

    def _fail(self, request_id: str, reason: str) -> None:
        span = self._pop(request_id)
        if span is not None:
            span.set_attribute("error.type", reason)
            span.set_status(self._failure)
            span.end()

    def _pop(self, request_id: str) -> Any:
        self._begun.discard(request_id)
        return self._spans.pop(request_id, None)
