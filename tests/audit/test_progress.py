"""What an audit says while it runs."""

from __future__ import annotations

import pytest
from standins.rounds import FunctionRound
from standins.server import StandIn

import forerun as fr
from forerun.base.clock import timed_by
from forerun.cli.audit import Shown
from forerun.proof.broken import walk

URL = "http://localhost/v1"


def test_a_check_that_takes_long_is_told_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    seconds = iter([0.0, 5.0, 11.0, 12.0])
    shown = Shown()
    with timed_by(lambda: next(seconds)):
        for check, spent in (("law", 0), ("law", 5), ("law", 11), ("options", 12)):
            shown(check, spent, 50)
    spent_at = [line.split("(")[1].split()[0] for line in capsys.readouterr().err.splitlines()]
    assert spent_at == ["0", "11", "12"]


def test_progress_is_told_with_every_answer() -> None:
    told: list[tuple[str, int, int]] = []
    server = StandIn(round=FunctionRound(walk))
    fr.audit(URL, transport=server, budget=300, progress=lambda *news: told.append(news))
    laws = [spent for check, spent, _ in told if check == "law"]
    assert len(laws) > 2
    assert laws == sorted(laws)
