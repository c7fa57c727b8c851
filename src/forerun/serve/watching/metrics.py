"""The server's metrics, in Prometheus' format.

A metric that vLLM has too has the same name here, but with the prefix `forerun:`; labels and
buckets are ours. Labels have few values: routes, reasons, stages, positions, and names of
configured keys. A request id is never a label.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    PlatformCollector,
    ProcessCollector,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.openmetrics.exposition import ALLOWUTF8
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST as OPEN_METRICS

from forerun.base.version import __version__
from forerun.engine.results import Generation, Piece, Stats
from forerun.serve.watching.acceptance import DIRECTIONS, Acceptance
from forerun.serve.watching.logs import say
from forerun.serve.watching.roles import Counts, Watcher

STAGES = ("draft", "score", "verify", "commit")
MODEL = "model_name"  # the label, as dashboards made for vLLM have it
LAST_POSITION = 31
"""All positions of a draft from this one on are counted together."""
MAX_LABELS = 100
"""The most values of one label; further values are counted as "other"."""

LATENCY = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5,
)  # fmt: skip
FIRST_TOKEN = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160)
WHOLE = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 20, 30, 40, 60, 120, 240, 480, 960)
LENGTHS = (0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32)


@dataclass
class _Choice:
    """The counts of one choice so far."""

    num_tokens: int = 0
    last: float = 0.0  # when its latest token came
    stats: Stats | None = None  # of the present engine
    num_before: int = 0  # rounds of engines before it
    num_rounds: int = 0  # of all of them, as far as counted


@dataclass
class _Visit:
    """A request that has not ended yet."""

    owner: str
    received: float
    started: float | None = None
    first: float | None = None
    choices: dict[int, _Choice] = field(default_factory=dict)


class Families:
    """The metrics of a server; the first label of each is the model's name."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        registry = self.registry = CollectorRegistry()
        self.recent = Recent(clock)

        def counter(name: str, text: str, *labels: str) -> Any:
            return Counter(f"forerun:{name}", text, [MODEL, *labels], registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Any:
            return Histogram(f"forerun:{name}", text, [MODEL], buckets=buckets, registry=registry)

        def gauge(name: str, text: str) -> Any:
            return Gauge(f"forerun:{name}", text, [MODEL], registry=registry)

        self.gauges = {
            "num_running": gauge("num_requests_running", "Answers that are being written."),
            "num_waiting": gauge("num_requests_waiting", "Answers that wait for a row."),
            "num_rows": gauge("num_batch_rows", "Rows that are taken, in all engines."),
        }
        self.loaded = gauge("model_loaded", "Whether the model is loaded.")
        self.drafts = counter("spec_decode_num_drafts", "Rounds with a draft.")
        self.drafted = counter("spec_decode_num_draft_tokens", "Guesses that were judged.")
        self.accepted = counter("spec_decode_num_accepted_tokens", "Guesses that were accepted.")
        self.positions = counter(
            "spec_decode_num_accepted_tokens_per_pos",
            f"Accepted guesses by position; {LAST_POSITION} and later ones together.",
            "position",
        )
        self.lengths = histogram("draft_length", "Guesses in a round of one answer.", LENGTHS)
        self.stages = counter(
            "stage_seconds", "Time of rounds by stage, once for each answer in them.", "stage"
        )
        self.first = histogram(
            "time_to_first_token_seconds", "From arrival to the first token.", FIRST_TOKEN
        )
        self.between = histogram(
            "inter_token_latency_seconds",
            "Time since the piece before over the tokens of a piece, once for each token.",
            LATENCY,
        )
        self.pauses = histogram(
            "inter_piece_latency_seconds", "Time between two pieces of one answer.", LATENCY
        )
        self.queued = histogram(
            "request_queue_time_seconds", "From arrival to the start of work.", FIRST_TOKEN
        )
        self.whole = histogram("e2e_request_latency_seconds", "From arrival to the end.", WHOLE)
        self.prompt_tokens = counter("prompt_tokens", "Tokens of prompts.", "owner")
        self.reused = counter("prompt_tokens_reused", "Tokens of prompts that were known already.")
        self.preemptions = counter(
            "preemptions", "Times that a request was sent back to the queue for want of memory."
        )
        self.given_out = counter("generation_tokens", "Tokens of answers.", "owner")
        self.requests = counter("requests", "Requests that were read.", "route", "owner")
        self.finished = counter("request_success", "Answers by how they ended.", "finished_reason")
        self.failed = counter("request_failure", "Requests that failed.", "reason")
        self.refused = counter("request_refused", "Requests that were refused.", "reason")
        self.unusual = counter(
            "acceptance_unusual", "Answers whose acceptance is far from the usual.", "direction"
        )
        self.alarm = Gauge(
            "forerun:acceptance_alarm",
            "Whether several answers of late had such an acceptance.",
            [MODEL, "direction"],
            registry=registry,
        )
        self.restarts = counter("engine_restarts", "Engines that died and were replaced.")
        self.about = Info(
            "forerun:server", "What is served, and how.", ["model"], registry=registry
        )
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)

    def exposition(self, accept: str = "", prefix: str = "") -> tuple[bytes, str]:
        """All metrics as bytes, and their content type: OpenMetrics if the Accept header asks for
        it.

        prefix: replaces `forerun` in their names.
        """
        if "application/openmetrics-text" in accept:
            # Its default escaping turns the colons of sample names into underscores.
            text, kind = openmetrics.generate_latest(self.registry, ALLOWUTF8), OPEN_METRICS
        else:
            text, kind = generate_latest(self.registry), CONTENT_TYPE_PLAIN_0_0_4
        return (text.replace(b"forerun:", prefix.encode() + b":") if prefix else text), kind


class Metrics(Watcher):
    """Counts the requests and tokens of one model, for Prometheus and for the demo page.

    All methods but `exposition` and `summary` must be called in the event loop's thread.
    """

    def __init__(
        self,
        *,
        model: str = "",
        drafter: str = "",
        rule: str = "",
        families: Families | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._now = clock  # not the one that steers drafts
        self._families = families = families or Families(clock)
        self.registry = families.registry
        self._model = model
        self._visits: dict[str, _Visit] = {}
        self._busy: Counts | None = None
        self._recent = Recent(clock)
        self._acceptance = Acceptance()
        self._seen: dict[str, set[str]] = {}
        about = {"version": __version__, "drafter": drafter, "rule": rule}
        families.about.labels(model).info(about)
        for source, gauge in families.gauges.items():
            gauge.labels(model).set_function(partial(self._gauge, source))
        families.loaded.labels(model).set_function(lambda: float(self._busy is not None))
        for stage in STAGES:
            families.stages.labels(model, stage)
        for direction in DIRECTIONS:
            families.unusual.labels(model, direction)
            families.alarm.labels(model, direction)
        self._drafts = families.drafts.labels(model)
        self._drafted = families.drafted.labels(model)
        self._accepted = families.accepted.labels(model)
        self._lengths = families.lengths.labels(model)
        self._first = families.first.labels(model)
        self._between = families.between.labels(model)
        self._pauses = families.pauses.labels(model)
        self._queued = families.queued.labels(model)
        self._whole = families.whole.labels(model)
        self._reused = families.reused.labels(model)
        self._preemptions = families.preemptions.labels(model)
        self._restarts = families.restarts.labels(model)

    def _gauge(self, source: str) -> float:
        return float(getattr(self._busy, source, 0))

    @property
    def num_open(self) -> int:
        """The number of requests that were received and have not ended."""
        return len(self._visits)

    def watch(self, busy: Counts | None) -> None:
        """Set the desk whose counts the gauges show."""
        self._busy = busy

    def received(
        self, request_id: str, route: str, owner_label: str = "", seconds: float = 0.0
    ) -> None:
        owner = self._label("owner", owner_label)
        self._families.requests.labels(self._model, self._label("route", route), owner).inc()
        self._visits[request_id] = _Visit(owner, self._now() - seconds)

    def refused(self, reason: str, request_id: str | None = None, owner_label: str = "") -> None:
        self._visits.pop(request_id or "", None)
        self._families.refused.labels(self._model, self._label("refusal", reason)).inc()

    def started(self, request_id: str) -> None:
        """Record that a request got its first row. Without this call, its first piece counts as the
        start."""
        visit = self._visits.get(request_id)
        if visit is not None and visit.started is None:
            visit.started = self._now()
            self._queued.observe(visit.started - visit.received)

    def piece(self, request_id: str, choice: int, piece: Piece, stats: Stats | None = None) -> None:
        """Count new tokens, and the rounds since the last piece."""
        visit = self._visits.get(request_id)
        if visit is None:
            return
        self.started(request_id)
        record = visit.choices.setdefault(choice, _Choice())
        if piece.tokens:
            self._count_tokens(visit, record, len(piece.tokens))
        if stats is None:
            return
        if stats is not record.stats:  # the first engine, or one that took over
            record.stats, record.num_before = stats, record.num_rounds
        self._count_rounds(record, stats, record.num_rounds - record.num_before)

    def judged(self, request_id: str, kind: str, answers: Sequence[Generation]) -> None:
        """Compare the acceptance of answers with the usual, and note it in their statistics. Log
        when it becomes unusual or usual again."""
        before = self._acceptance.alarm
        for answer in answers:
            counts = answer.stats.reached_by_position, answer.stats.accepted_by_position
            judged, accepted = map(sum, counts)
            mark = self._acceptance.judge(kind, judged, accepted)
            answer.stats.unusual_acceptance = mark
            if mark is not None:
                self._families.unusual.labels(self._model, mark).inc()
                say(
                    "unusual acceptance",
                    id=request_id,
                    model=self._model,
                    kind=kind,
                    acceptance=mark,
                    judged=judged,
                    accepted=accepted,
                )
        alarm = self._acceptance.alarm
        if alarm == before:
            return
        for direction in DIRECTIONS:
            self._families.alarm.labels(self._model, direction).set(alarm == direction)
        if alarm is None:
            say("acceptance is usual again", model=self._model)
        else:
            signs = {"low": "answers may be garbled", "high": "answers may run in circles"}
            say("acceptance alarm", logging.WARNING, model=self._model, sign=signs[alarm])

    def ended(self, request_id: str, answers: Sequence[Generation]) -> None:
        """Count a request that was answered; its statistics cover all engines that it ran on."""
        visit = self._visits.pop(request_id, None)
        if visit is None:
            return
        self._whole.observe(self._now() - visit.received)
        for choice, answer in enumerate(answers):
            record = visit.choices.setdefault(choice, _Choice())
            self._count_rounds(record, answer.stats, record.num_rounds)
            missing = len(answer.tokens) - record.num_tokens
            if missing > 0:
                self._count_tokens(visit, record, missing)
            self._families.prompt_tokens.labels(self._model, visit.owner).inc(
                len(answer.prompt_tokens)
            )
            self._reused.inc(getattr(answer.stats, "num_reused", 0))
            self._preemptions.inc(getattr(answer.stats, "preemptions", 0))
            self._families.finished.labels(
                self._model, self._label("finish", answer.finish_reason)
            ).inc()

    def failed(self, request_id: str, reason: str) -> None:
        self._visits.pop(request_id, None)
        self._families.failed.labels(self._model, self._label("failure", reason)).inc()

    def engine_restarted(self) -> None:
        self._restarts.inc()

    def exposition(self, accept: str = "", prefix: str = "") -> tuple[bytes, str]:
        return self._families.exposition(accept, prefix)

    def summary(self) -> dict[str, float | str | None]:
        """The rates of the last seconds, and the present load."""
        busy = self._busy
        return {
            **self._recent.rates(),
            "running": busy.num_running if busy else 0,
            "waiting": busy.num_waiting if busy else 0,
            "batch_rows": busy.num_rows if busy else 0,
            "acceptance_alarm": self._acceptance.alarm,
        }

    def totals(self) -> dict[str, float | None]:
        return self._families.recent.rates()

    def _count_tokens(self, visit: _Visit, record: _Choice, count: int) -> None:
        """Count tokens of one answer that arrived now."""
        moment = self._now()
        if visit.first is None:
            visit.first = moment
            self._first.observe(moment - visit.received)
        if record.num_tokens:
            pause = moment - record.last
            self._pauses.observe(pause)
            for _ in range(count):
                self._between.observe(pause / count)
        record.num_tokens += count
        record.last = moment
        self._families.given_out.labels(self._model, visit.owner).inc(count)
        self._work(Work(tokens=count))

    def _count_rounds(self, record: _Choice, stats: Stats, begin: int) -> None:
        """Count an answer's rounds from number `begin` on. The engine's thread may be adding rounds
        meanwhile."""
        end = max(begin, len(stats.seconds_by_round))  # which a round adds to last
        record.num_rounds += end - begin
        for drafted in stats.drafted_by_round[begin:end]:
            self._lengths.observe(drafted)
            self._drafts.inc(drafted > 0)
        for accepted in stats.accepted_by_round[begin:end]:
            for position in range(accepted):
                self._families.positions.labels(
                    self._model, str(min(position, LAST_POSITION))
                ).inc()
        for seconds in stats.seconds_by_round[begin:end]:
            for stage in STAGES:
                self._families.stages.labels(self._model, stage).inc(getattr(seconds, stage))
        num_drafted = sum(stats.drafted_by_round[begin:end])
        num_accepted = sum(stats.accepted_by_round[begin:end])
        self._drafted.inc(num_drafted)
        self._accepted.inc(num_accepted)
        self._work(Work(0, end - begin, num_drafted, num_accepted))

    def _work(self, work: Work) -> None:
        """Add work to the recent rates of the model and of the server."""
        for recent in (self._recent, self._families.recent):
            recent.add(work)

    def _label(self, kind: str, value: str) -> str:
        """The value as a label; "other" if there are too many values of this kind."""
        seen = self._seen.setdefault(kind, set())
        if len(seen) < MAX_LABELS:
            seen.add(value)
        return value if value in seen else "other"


WINDOW = 3.0
"""The length, in seconds, of the window from which current rates are computed."""


@dataclass
class Work:
    """An amount of work: tokens given out, and rounds with their guesses."""

    tokens: int = 0
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0


class Recent:
    """The work done in the last seconds."""

    def __init__(self, clock: Callable[[], float], window: float = WINDOW) -> None:
        self._now = clock
        self._window = window
        self._events: deque[tuple[float, Work]] = deque()
        self._sum = Work()
        self._busy_since = self._now()

    def add(self, work: Work) -> None:
        """Add work that was done just now."""
        self._forget()
        if not self._events:
            self._busy_since = self._now()
        self._events.append((self._now(), work))
        self._count(work, 1)

    def rates(self) -> dict[str, float | None]:
        """Tokens per second, acceptance and mean draft length; None where nothing was counted."""
        self._forget()
        total = self._sum
        span = min(self._window, max(self._now() - self._busy_since, 1.0))
        return {
            "tokens_per_second": total.tokens / span,
            "acceptance_rate": total.accepted / total.drafted if total.drafted else None,
            "mean_draft_length": total.drafted / total.rounds if total.rounds else None,
        }

    def _forget(self) -> None:
        oldest = self._now() - self._window
        while self._events and self._events[0][0] < oldest:
            self._count(self._events.popleft()[1], -1)

    def _count(self, work: Work, sign: int) -> None:
        self._sum.tokens += sign * work.tokens
        self._sum.rounds += sign * work.rounds
        self._sum.drafted += sign * work.drafted
        self._sum.accepted += sign * work.accepted
