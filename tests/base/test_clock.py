"""The clock of rounds: it stands still while code is compiled."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import forerun as fr
from clocks import StillClock
from forerun.base import clock
from forerun.engine.steering.draft_planning import DraftPlanner


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch, erratic_clock: None) -> Iterator[StillClock]:
    """The system's clock, set by hand."""
    still = StillClock(100.0)
    monkeypatch.setattr(time, "perf_counter", still)
    monkeypatch.setattr(clock, "_compiler", (0.0, None))
    with clock.timed_by(still):
        yield still


def test_the_clock_stands_still_while_code_is_compiled(seconds: StillClock) -> None:
    begin = clock.working()
    seconds.pass_by(1.0)
    clock.start_compiler()
    seconds.pass_by(10.0)
    assert clock.working() - begin == 1.0
    assert clock.compiled() == 10.0
    clock.stop_compiler()
    seconds.pass_by(2.0)
    assert clock.working() - begin == 3.0
    assert clock.now() - 100.0 == 13.0
    assert clock.compiled() == 10.0
    clock.stop_compiler()
    assert clock.compiled() == 10.0


def test_a_clock_that_was_set_has_its_own_seconds(seconds: StillClock) -> None:
    clock.start_compiler()
    seconds.pass_by(10.0)
    with clock.timed_by(StillClock(5.0)):
        assert clock.working() == 5.0
        assert clock.compiled() == 0.0


def test_numba_stops_the_clock_once_for_functions_within_functions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    numba = pytest.importorskip("numba")
    pytest.importorskip("forerun.lean.jit")  # which listens

    told: list[str] = []
    monkeypatch.setattr(clock, "start_compiler", lambda: told.append("start"))
    monkeypatch.setattr(clock, "stop_compiler", lambda: told.append("stop"))

    @numba.njit
    def inner(number: int) -> int:
        return number + 1

    @numba.njit
    def outer(number: int) -> int:
        return inner(number) + 1

    assert outer(1) == 3
    assert told == ["start", "stop"]
    assert outer(2) == 4
    assert told == ["start", "stop"], "it is compiled by now"


def test_a_round_that_waits_for_the_compiler_is_timed_without(
    seconds: StillClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its seconds are told apart, and no price is learned from it."""
    learned: list[Any] = []
    monkeypatch.setattr(DraftPlanner, "learn", lambda *given: learned.append(given[-1]))
    passes = 0

    def scored(tokens: Any) -> Any:
        nonlocal passes
        passes += 1
        seconds.pass_by(1.0)
        if passes == 3:
            clock.start_compiler()
            seconds.pass_by(50.0)
            clock.stop_compiler()
        return np.full(4, 0.25)

    target = fr.wrap(scored)
    passes = 0
    out = fr.generate(target, [1, 2], drafter=None, max_new_tokens=4)
    assert [spent.score for spent in out.stats.seconds_by_round] == [1.0] * 4
    assert [spent.commit for spent in out.stats.seconds_by_round] == [0.0] * 4
    assert out.stats.compiling == 50.0
    assert [spent is None for spent in learned] == [False, False, True, False]
