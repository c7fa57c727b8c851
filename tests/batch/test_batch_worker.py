"""A worker process whose job is killed ends at once, and says nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from io import StringIO

import pytest

from forerun.batch.batch_worker import _teller

LOADING = """
import time
from forerun.batch import batch_worker
from forerun.batch.answerer import Answerer

Answerer.load = classmethod(lambda cls, settings: time.sleep(60))
batch_worker.main()
"""


def test_also_while_it_loads_a_model() -> None:
    pipe = subprocess.PIPE
    worker = subprocess.Popen([sys.executable, "-c", LOADING], stdin=pipe, stdout=pipe, stderr=pipe)
    first = json.dumps({"settings": {"device": "cpu"}, "place": 0}) + "\n"
    try:
        assert worker.communicate(first.encode(), timeout=30) == (b"", b"")
        assert worker.returncode == 0
    finally:
        worker.kill()


class Unread(StringIO):
    def flush(self) -> None:
        raise BrokenPipeError


def test_also_when_it_has_just_begun_to_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def leave(status: int) -> None:
        raise SystemExit(status)

    monkeypatch.setattr(os, "_exit", leave)
    with pytest.raises(SystemExit, match="0"):
        _teller(Unread())({"ready": "fingerprint"})
