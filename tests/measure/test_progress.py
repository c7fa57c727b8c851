"""Which step of how many, and how long the rest may take."""

from __future__ import annotations

import io
from typing import Any

import pytest

import forerun as fr
from forerun.measure import progress
from forerun.measure.probe import step_sizes
from forerun.measure.progress import Progress, duration
from forerun.models.table import TableModel


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, to be set."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def steps(stream: Any, seconds: list[float], each: float) -> str:
    with Progress("run", 6, done=2, stream=stream) as told:
        for number in range(4):
            told.begin(f"cell {number}")
            seconds[0] += each
    return str(stream.getvalue())


def test_a_terminal_shows_every_step_on_one_line(seconds: list[float]) -> None:
    shown = steps(Terminal(), seconds, each=30.0).split("\r")
    assert [line.strip() for line in shown if line.strip()] == [
        "run 3 of 6: cell 0",
        "run 4 of 6: cell 1, about 90 s left",
        "run 5 of 6: cell 2, about 60 s left",
        "run 6 of 6: cell 3, about 30 s left",
    ]
    assert shown[-1] == ""  # the line is left empty
    assert "\n" not in "".join(shown)


def test_a_pipe_gets_a_line_now_and_then(seconds: list[float]) -> None:
    assert steps(io.StringIO(), seconds, each=12.0).splitlines() == [
        "run 3 of 6: cell 0",
        "run 5 of 6: cell 2, about 24 s left",
    ]


def test_the_time_left_goes_by_the_sizes_of_steps(seconds: list[float]) -> None:
    stream = Terminal()
    with Progress("step", 4, stream=stream, sizes=[10.0, 1.0, 1.0, 2.0]) as told:
        for size in (10, 1, 1, 2):
            told.begin("work")
            seconds[0] += 3.0 * size
    shown = [line.strip() for line in stream.getvalue().split("\r") if line.strip()]
    assert [line.partition("work")[2] for line in shown] == [
        "", ", about 12 s left", ", about 9 s left", ", about 6 s left",
    ]  # fmt: skip


def test_a_probe_reports_the_steps_that_it_lists() -> None:
    target, told = TableModel.random(5, 1, seed=0), []
    prompts, drafters = [[1], [2, 3]], ["ngram", "suffix"]
    fr.plan(target, drafters, prompts, trees=[4], max_new_tokens=6, report=told.append)
    sizes = step_sizes(len(drafters), len(prompts), 1, num_trees=1)
    assert len(told) == len(sizes)
    drafting = [size == 1.0 for size in sizes]
    assert drafting == [what.startswith("drafting with") for what in told]


def test_notes_are_for_terminals(seconds: list[float]) -> None:
    for stream, expected in ((Terminal(), "\rsamples ..."), (io.StringIO(), "")):
        Progress("run", 6, stream=stream).note("samples")
        assert stream.getvalue() == expected


@pytest.mark.parametrize(
    ("seconds_left", "words"),
    [(0.4, "0 s"), (99, "99 s"), (200, "3 min"), (5000, "83 min"), (10_000, "2.8 h")],
)
def test_durations(seconds_left: float, words: str) -> None:
    assert duration(seconds_left) == words
