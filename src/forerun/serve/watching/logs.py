"""Log lines: one for each response, one when a request is accepted, and one when it ends.

A line is an event with fields, as JSON or as `key=value`. Keys, prompts and answers are never
logged; of an exception only its type and place are, because messages may quote input.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TextIO

from forerun.base.errors import InputError, explain
from forerun.engine.results import Generation, Piece, Stats
from forerun.serve.watching.roles import Watcher

LOG = logging.getLogger("forerun.serve")
QUIET_ROUTES = ("/health", "/ready", "/metrics", "/v1/stats")
"""Paths that monitoring requests every few seconds. Successful responses to them are logged at
level DEBUG."""
LONGEST = 200
"""The most characters of a field that are logged."""

_PLAIN = re.compile(r"[\w./:+\-]+", re.ASCII)


def set_up(*, is_json: bool = False, level: int = logging.INFO) -> None:
    """Write our log lines, and uvicorn's messages, to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Lines(is_json))
    if not is_json:
        handler.addFilter(lambda record: not hasattr(record, "was_printed"))
    for name in ("forerun", "uvicorn", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers = [handler] if name != "uvicorn.error" else []
        logger.setLevel(level)
        logger.propagate = name == "uvicorn.error"
    access = logging.getLogger("uvicorn.access")  # ours say more, and no query strings
    access.handlers, access.propagate = [], False


def say(event: str, level: int = logging.INFO, **fields: Any) -> None:
    """Log an event with its fields; fields that are None are left out."""
    LOG.log(level, event, extra={"fields": fields})


class Lines(logging.Formatter):
    """A log formatter that writes one line per record."""

    def __init__(self, is_json: bool) -> None:
        super().__init__()
        self._is_json = is_json

    def format(self, record: logging.LogRecord) -> str:
        """One line with the record's time, level, event and fields, and the type of an
        exception."""
        fields = {
            "time": _moment(record.created),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info and record.exc_info[1] is not None:
            fields |= describe(record.exc_info[1])
        fields = {key: _short(value) for key, value in fields.items() if value is not None}
        if self._is_json:
            return json.dumps(fields)  # in ASCII: some readers break lines at U+2028 and U+0085
        head = f"{fields.pop('time')} {fields.pop('level')} {_one_line(fields.pop('event'))}"
        return " ".join([head, *(f"{key}={_value(value)}" for key, value in fields.items())])


def _moment(seconds: float) -> str:
    """A time, in seconds since 1970, in the form of the log."""
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{whole}.{int(seconds % 1 * 1000):03d}Z"


def describe(error: BaseException) -> dict[str, str]:
    """Describe an exception without its message: its type, and the innermost places in the
    traceback."""
    frames = traceback.extract_tb(error.__traceback__)[-3:]
    places = [f"{frame.filename.rsplit('/', 1)[-1]}:{frame.lineno}" for frame in frames]
    return {"error": type(error).__name__, "at": " ".join(places)}


class ResponseLog:
    """ASGI middleware that logs a line when a response ends."""

    def __init__(self, app: Any, clock: Callable[[], float] = time.perf_counter) -> None:
        self._app = app
        self._now = clock

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begin, status, request_id = self._now(), 0, None

        async def watched(message: Any) -> None:
            nonlocal status, request_id
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = dict(message.get("headers", ()))
                request_id = headers.get(b"x-request-id", b"").decode("latin-1") or None
            await send(message)

        try:
            await self._app(scope, receive, watched)
        finally:
            is_quiet = scope["path"] in QUIET_ROUTES and 200 <= status < 300
            say(
                "response",
                logging.DEBUG if is_quiet else logging.INFO,
                id=request_id,
                method=scope["method"],
                path=scope["path"],
                status=status or None,
                seconds=round(self._now() - begin, 4),
            )


class RequestLog:
    """A file with one JSON object for each request that has ended; it never contains texts.

    path: the file, which is appended to; "-" for standard output.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._file: TextIO = sys.stdout
        self._is_failing = False
        self.reopen()

    def reopen(self) -> None:
        """Open the file anew if it was moved away, as log rotation does."""
        if self._path == "-":
            return
        try:
            file = open(self._path, "a", encoding="ascii")  # noqa: SIM115
        except OSError as error:
            cure = "Name a file that this process may write to, or - for standard output."
            received = f"{self._path} ({type(error).__name__})"
            raise InputError(
                explain("The request log cannot be opened.", received, cure)
            ) from error
        before, self._file = self._file, file
        if before is not sys.stdout:
            with suppress(OSError):  # of lines that had no room on the disk
                before.close()

    def __call__(self, event: str, level: int = logging.INFO, **fields: Any) -> None:
        """Write a line if the event ends a request. If writing fails, the server's log reports it
        once."""
        if event not in ("answer", "failed", "refused"):
            return
        line = json.dumps({"time": _moment(time.time()), "event": event, **fields})
        try:
            self._file.write(line + "\n")
            self._file.flush()
        except (OSError, ValueError) as error:
            if not self._is_failing:
                say("request log fails", logging.ERROR, **describe(error))
            self._is_failing = True
        else:
            self._is_failing = False


class AnswerLog(Watcher):
    """Logs one line when a request begins and one when it ends.

    model: its id.
    tell: called with the name of an event and its fields.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.perf_counter,
        *,
        model: str | None = None,
        tell: Callable[..., None] = say,
    ) -> None:
        self._now = clock
        self._model = model
        self._tell = tell
        self._open: dict[str, dict[str, Any]] = {}

    def received(
        self, request_id: str, route: str, owner_label: str = "", seconds: float = 0.0
    ) -> None:
        owner = owner_label or None
        self._open[request_id] = {"route": route, "owner": owner, "begin": self._now() - seconds}
        self._tell("received", id=request_id, model=self._model, route=route, owner=owner)

    def refused(self, reason: str, request_id: str | None = None, owner_label: str = "") -> None:
        """Log that a request was refused, perhaps before its model was known."""
        known = self._open.pop(request_id or "", {})
        self._tell(
            "refused",
            id=request_id,
            model=self._model if known else None,  # else it may not have chosen one yet
            route=known.get("route"),
            owner=known.get("owner") or owner_label or None,
            reason=reason,
        )

    def started(self, request_id: str) -> None:
        """Record when a request got its first row."""
        if (known := self._open.get(request_id)) is not None:
            known.setdefault("started", self._now())

    def piece(self, request_id: str, choice: int, piece: Piece, stats: Stats | None = None) -> None:
        known = self._open.get(request_id)
        if known is not None and piece.tokens:
            known.setdefault("first", self._now())

    def ended(self, request_id: str, answers: Sequence[Generation]) -> None:
        """Log the counts and times of a request that was answered."""
        known = self._open.pop(request_id, None)
        if known is None:
            return
        self._tell(
            "answer",
            id=request_id,
            model=self._model,
            route=known["route"],
            owner=known["owner"],
            choices=len(answers),
            finish=",".join(sorted({answer.finish_reason for answer in answers})),
            prompt_tokens=sum(len(answer.prompt_tokens) for answer in answers),
            tokens=sum(len(answer.tokens) for answer in answers),
            rounds=sum(answer.stats.rounds for answer in answers),
            drafted=sum(answer.stats.drafted for answer in answers),
            accepted=sum(answer.stats.accepted for answer in answers),
            queue_seconds=self._since(known, "started"),
            first_token_seconds=self._since(known, "first"),
            seconds=round(self._now() - known["begin"], 4),
        )

    def failed(self, request_id: str, reason: str) -> None:
        """Log that a request ended with an error."""
        known = self._open.pop(request_id, {})
        self._tell(
            "failed",
            logging.ERROR,
            id=request_id,
            model=self._model,
            route=known.get("route"),
            owner=known.get("owner"),
            reason=reason,
        )

    def engine_restarted(self) -> None:
        self._tell("engine restarted", logging.WARNING, model=self._model)

    def _since(self, known: dict[str, Any], moment: str) -> float | None:
        return round(known[moment] - known["begin"], 4) if moment in known else None


def _short(value: Any) -> Any:
    return value[:LONGEST] if isinstance(value, str) else value


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _value(value: Any) -> str:
    """A value as text, quoted where it could be read as something else."""
    text = str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text)
