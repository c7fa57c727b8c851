"""Log lines and spans: what they hold, and what they never do."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import sys
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("prometheus_client")

from clocks import StillClock
from forerun.base.errors import notice
from forerun.engine.results import Fate, Generation, Piece, Stats
from forerun.serve.watching import logs
from forerun.serve.watching.logs import AnswerLog, Lines, ResponseLog, say
from forerun.serve.watching.metrics import Metrics
from forerun.serve.watching.roles import Watching
from forerun.serve.watching.tracing import Tracing, make_tracing

SECRET = "sk-very-secret"
PROMPT = "what the user wrote"
ANSWER = "what the model wrote"


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """What is logged as JSON."""
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    handler.setFormatter(Lines(is_json=True))
    logs.LOG.addHandler(handler)
    before = logs.LOG.level
    logs.LOG.setLevel(logging.INFO)
    yield text
    logs.LOG.removeHandler(handler)
    logs.LOG.setLevel(before)


def read(lines: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines.getvalue().splitlines()]


def answer_of(reason: str = "stop") -> Generation:
    stats = Stats()
    stats.count_round(4, 4, 2, True, 3)
    stats.count_seconds(1.0, 1.0, 1.0, 1.0)
    return Generation([1, 2, 3, 4, 5], [7, 8, 9], ANSWER, reason, 0, stats, [])


PIECE = Piece([(ANSWER, Fate.BONUS)], [7, 8, 9], [Fate.BONUS] * 3)


def test_an_answer_is_a_line_with_its_counts(lines: io.StringIO) -> None:
    clock = StillClock()
    log = AnswerLog(clock)
    log.received("req-1", "/v1/completions", "team-x", seconds=0.25)
    clock.pass_by(0.25)
    log.piece("req-1", 0, PIECE)
    clock.pass_by(1.0)
    log.piece("req-1", 0, PIECE)
    log.ended("req-1", [answer_of(), answer_of("length")])
    first, line = read(lines)
    begin = {name: first[name] for name in ("event", "id", "route", "owner")}
    assert list(begin.values()) == ["received", "req-1", "/v1/completions", "team-x"]
    del line["time"]
    assert line == {
        "level": "info",
        "event": "answer",
        "id": "req-1",
        "route": "/v1/completions",
        "owner": "team-x",
        "choices": 2,
        "finish": "length,stop",
        "prompt_tokens": 10,
        "tokens": 6,
        "rounds": 2,
        "drafted": 8,
        "accepted": 4,
        "first_token_seconds": 0.5,
        "seconds": 1.5,
    }


def test_refusals_failures_and_restarts_have_their_levels(lines: io.StringIO) -> None:
    log = AnswerLog()
    log.received("req-1", "/v1/completions")
    log.refused("queue_full", "req-1")
    log.refused("rate_limit_exceeded", "req-3", "alice")
    log.received("req-2", "/v1/completions")
    log.failed("req-2", "model")
    log.engine_restarted()
    ends = [line for line in read(lines) if line["event"] != "received"]
    shown = [(line["event"], line["level"], line.get("id")) for line in ends]
    assert shown == [
        ("refused", "info", "req-1"),
        ("refused", "info", "req-3"),
        ("failed", "error", "req-2"),
        ("engine restarted", "warning", None),
    ]
    assert [line.get("owner") for line in ends] == [None, "alice", None, None]


def request(path: str, query: bytes = b"", status: int = 200, error: bool = False) -> None:
    """One GET through the middleware."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if error:
            raise RuntimeError(PROMPT)
        headers = [(b"x-request-id", b"req-7")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": ANSWER.encode()})

    async def send(message: Any) -> None:
        pass

    headers = [(b"authorization", f"Bearer {SECRET}".encode())]
    scope = {"type": "http", "method": "GET", "path": path, "query_string": query}
    asyncio.run(ResponseLog(app)({**scope, "headers": headers}, None, send))


def test_a_response_is_a_line(lines: io.StringIO) -> None:
    request("/v1/models", query=f"key={SECRET}".encode(), status=401)
    (line,) = read(lines)
    assert (line["event"], line["id"], line["status"]) == ("response", "req-7", 401)
    assert (line["method"], line["path"]) == ("GET", "/v1/models")
    assert SECRET not in lines.getvalue()
    assert ANSWER not in lines.getvalue()


def test_probes_are_logged_only_when_they_fail(lines: io.StringIO) -> None:
    request("/health")
    request("/ready", status=503)
    assert [line["path"] for line in read(lines)] == ["/ready"]


def test_a_response_that_never_began_is_logged(lines: io.StringIO) -> None:
    with pytest.raises(RuntimeError):
        request("/v1/models", error=True)
    (line,) = read(lines)
    assert "status" not in line


@pytest.mark.parametrize("is_json", [True, False])
def test_exceptions_are_logged_without_their_message(is_json: bool) -> None:
    try:
        raise ValueError(PROMPT)
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, "", 0, "trouble", None, sys.exc_info())
    line = Lines(is_json).format(record)
    assert PROMPT not in line
    assert "ValueError" in line
    assert "test_logs.py:" in line


def test_plain_lines_cannot_be_forged() -> None:
    """A field with spaces, quotes or line breaks is quoted; an event stays on its line."""
    fields = {"id": 'a b="c"\nadmin', "status": 200}
    record = logging.LogRecord("x", logging.INFO, "", 0, "an\nevent", None, None)
    record.fields = fields
    line = Lines(is_json=False).format(record)
    assert "\n" not in line
    assert line.endswith(r' info an event id="a b=\"c\"\nadmin" status=200')


def test_json_lines_have_no_breaks_of_any_kind(lines: io.StringIO) -> None:
    path = "/a\u2028b\u0085c\nd"
    say("response", path=path)
    (line,) = read(lines)
    assert line["path"] == path


def test_long_fields_are_cut(lines: io.StringIO) -> None:
    say("response", path="/" + "x" * 10_000)
    assert len(lines.getvalue()) < 400


def test_set_up_writes_ours_and_uvicorns_and_no_query_strings(
    capsys: pytest.CaptureFixture[str],
) -> None:
    names = ("forerun", "uvicorn", "uvicorn.error", "uvicorn.access")
    loggers = [logging.getLogger(name) for name in names]
    before = [(one.handlers, one.level, one.propagate) for one in loggers]
    try:
        logs.set_up(is_json=True)
        say("response", status=200)
        logging.getLogger("uvicorn.error").info("Started server process [%d]", 7)
        logging.getLogger("uvicorn.access").info("GET /v1/models?key=%s", SECRET)
    finally:
        for one, (one.handlers, level, one.propagate) in zip(loggers, before, strict=True):
            one.setLevel(level)
    shown = [json.loads(line)["event"] for line in capsys.readouterr().err.splitlines()]
    assert shown == ["response", "Started server process [7]"]


class Span:
    def __init__(self, name: str, attributes: dict[str, Any]) -> None:
        self.name, self.attributes, self.events, self.num_ends = name, attributes, [], 0
        self.status: Any = None

    def add_event(self, name: str) -> None:
        self.events.append(name)

    def set_attribute(self, name: str, value: Any) -> None:
        self.attributes[name] = value

    def set_attributes(self, values: dict[str, Any]) -> None:
        self.attributes |= values

    def set_status(self, status: Any) -> None:
        self.status = status

    def end(self) -> None:
        self.num_ends += 1


class Tracer:
    """Keeps what it is given, as an exporter would."""

    def __init__(self) -> None:
        self.spans: list[Span] = []

    def start_span(self, name: str, attributes: dict[str, Any], start_time: int) -> Span:
        self.spans.append(Span(name, attributes))
        return self.spans[-1]


def test_a_request_is_a_span() -> None:
    tracer = Tracer()
    tracing = Tracing(tracer, "tiny", "an error")
    tracing.received("req-1", "/v1/chat/completions")
    tracing.piece("req-1", 0, PIECE)
    tracing.piece("req-1", 0, PIECE)
    tracing.ended("req-1", [answer_of(), answer_of("length")])
    tracing.ended("req-1", [])
    (span,) = tracer.spans
    assert span.num_ends == 1
    assert span.events == ["first token"]
    assert span.attributes["gen_ai.request.model"] == "tiny"
    assert span.attributes["gen_ai.usage.input_tokens"] == 10
    assert span.attributes["gen_ai.usage.output_tokens"] == 6
    assert span.attributes["gen_ai.response.finish_reasons"] == ["stop", "length"]
    assert span.attributes["forerun.accepted"] == 4
    assert ANSWER not in str(span.attributes)


def test_a_failed_request_is_a_span_with_an_error() -> None:
    tracer = Tracer()
    tracing = Tracing(tracer, "tiny", "an error")
    for request_id in ("req-1", "req-2", "req-3"):
        tracing.received(request_id, "/v1/completions")
    tracing.failed("req-1", "model")
    tracing.refused("queue_full", "req-2")
    tracing.refused("key")
    tracing.ended("req-3", [answer_of()])
    assert [span.status for span in tracer.spans] == ["an error", "an error", None]
    assert [span.attributes.get("error.type") for span in tracer.spans[:2]] == [
        "model",
        "queue_full",
    ]
    assert [span.num_ends for span in tracer.spans] == [1, 1, 1]


def test_spans_reach_opentelemetry() -> None:
    sdk = pytest.importorskip("opentelemetry.sdk.trace", reason="pip install opentelemetry-sdk")
    from opentelemetry import trace
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), sdk.TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    tracing = make_tracing("tiny")
    assert tracing is not None
    for request_id in ("req-1", "req-2"):
        tracing.received(request_id, "/v1/completions")
        tracing.piece(request_id, 0, PIECE)
    tracing.failed("req-1", "model")
    tracing.ended("req-2", [answer_of()])
    failed, ended = exporter.get_finished_spans()
    assert failed.status.status_code is trace.StatusCode.ERROR
    assert ended.status.status_code is trace.StatusCode.UNSET
    assert ended.attributes["gen_ai.usage.output_tokens"] == 3
    assert [event.name for event in ended.events] == ["first token"]


def test_everybody_is_told(lines: io.StringIO) -> None:
    tracer = Tracer()
    metrics = Metrics()
    watching = Watching(metrics, AnswerLog(), Tracing(tracer, "tiny", "an error"))
    watching.received("req-1", "/v1/completions", "")
    watching.started("req-1")
    watching.piece("req-1", 0, PIECE)
    watching.ended("req-1", [answer_of()])
    watching.received("req-2", "/v1/completions", "")
    watching.refused("queue_full", "req-2")
    watching.received("req-3", "/v1/completions", "")
    watching.failed("req-3", "model")
    watching.engine_restarted()
    events = [line["event"] for line in read(lines) if line["event"] != "received"]
    assert events == ["answer", "refused", "failed", "engine restarted"]
    text = watching.exposition()[0].decode()
    for name in ("request_success", "request_refused", "request_failure"):
        assert f"forerun:{name}_total{{" in text
    assert 'forerun:engine_restarts_total{model_name=""} 1.0' in text
    assert metrics.num_open == 0
    assert len(tracer.spans) == 3
    assert ANSWER not in lines.getvalue() + text
    assert watching.summary()["running"] == 0


@pytest.mark.parametrize("is_json", [False, True])
def test_a_printed_notice_is_no_second_line_of_the_same_stream(
    is_json: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    loggers = [logging.getLogger(name) for name in ("forerun", "uvicorn", "uvicorn.error")]
    before = [(one.handlers, one.level, one.propagate) for one in loggers]
    try:
        logs.set_up(is_json=is_json)
        notice("slow work")
    finally:
        for one, (one.handlers, level, one.propagate) in zip(loggers, before, strict=True):
            one.setLevel(level)
    told = capsys.readouterr().err.splitlines()
    assert told[0] == "forerun: slow work"
    assert len(told) == 1 + is_json
