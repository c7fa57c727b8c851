"""Keeps every answer on disk under a name, so that an audit that was stopped can be resumed.

An audit's questions depend only on its settings and on the answers. Repeated with the journal, it
gets the same answers, makes the same decisions, and sends only what is missing.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from forerun.audit.wire import Call, Raw, Transport
from forerun.base.errors import InputError, explain

RECORD = {"name", "sent", "status", "body", "headers", "events", "seconds"}
"""The fields of every line of the journal except the first, which holds the settings."""


class Journal:
    """All answers by name; `path` None keeps them only in memory.

    settings: what the questions depend on; a journal made with other settings is refused.
    """

    def __init__(
        self, transport: Transport, path: Path | None, settings: Mapping[str, Any]
    ) -> None:
        """Read the answers of an earlier run, if there are any."""
        self._transport = transport
        self._answers: dict[str, tuple[str, Raw]] = {}
        self._lock = threading.Lock()
        self._file: TextIO | None = None
        self.num_resumed = 0
        if path is not None:
            self._open(path, dict(settings))

    def answer(self, name: str, call: Call) -> Raw:
        """The answer with this name: from the journal, or else from the endpoint."""
        sent = json.dumps([call.method, call.path, call.body], sort_keys=True)
        if name in self._answers and self._answers[name][0] == sent:
            return self._answers[name][1]
        raw = self._transport.send(call)
        with self._lock:
            self._answers[name] = (sent, raw)
            if self._file is not None:
                self._file.write(json.dumps(_line(name, sent, raw)) + "\n")
                self._file.flush()
        return raw

    def close(self) -> None:
        """Close the file; the answers in memory stay available."""
        if self._file is not None:
            self._file.close()

    def _open(self, path: Path, settings: dict[str, Any]) -> None:
        """Read the complete lines of a journal, and continue writing after them."""
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_bytes().decode(errors="replace").splitlines() if path.exists() else []
        records = [record for record in map(_parsed, lines) if record is not None]
        if records:
            if records[0].get("settings") != json.loads(json.dumps(settings)):
                cure = "Use the same settings, or another --out."
                received = f"{path} of an audit with {records[0].get('settings')}"
                raise InputError(explain("The journal belongs to another audit.", received, cure))
            records = records[:1] + [record for record in records[1:] if "sent" in record]
            for record in records[1:]:
                raw = Raw(
                    record["status"],
                    record["body"],
                    record["headers"],
                    tuple((at, event) for at, event in record["events"]),
                    record["seconds"],
                )
                self._answers[record["name"]] = (record["sent"], raw)
            self.num_resumed = len(self._answers)
        complete = "".join(json.dumps(record) + "\n" for record in records)
        whole = path.with_name(f"{path.name}.part")
        whole.write_text(complete or json.dumps({"settings": settings}) + "\n", encoding="utf-8")
        whole.replace(path)
        self._file = path.open("a", encoding="utf-8")


def _line(name: str, sent: str, raw: Raw) -> dict[str, Any]:
    """An answer as a record of the journal. Of its headers only Retry-After is kept."""
    return {
        "name": name,
        "sent": sent,
        "status": raw.status,
        "body": raw.body,
        "headers": {"retry-after": value} if (value := raw.headers.get("retry-after")) else {},
        "events": raw.events,
        "seconds": raw.seconds,
    }


def _parsed(line: str) -> dict[str, Any] | None:
    """A record of the journal; None for a line that is incomplete or damaged."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    is_whole = isinstance(record, dict) and ("settings" in record or record.keys() >= RECORD)
    return record if is_whole else None
