"""The clock that steers drafts: rounds and drafters are timed by it.

It stands still while code is compiled: that is done once on a machine, and tells nothing about the
next round.  What is learned from real times differs from run to run.  Tests set a clock of their
own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random

NUM_STAGES = 5  # of a round, the time between two rounds included
SPELL = 20 * NUM_STAGES  # readings for which a stage is dear or cheap

source: Callable[[], float] = time.perf_counter
"""Seconds since some moment."""


is_code_kept = True
"""Whether what was compiled is found again by the next process."""

_compiler: tuple[float, float | None] = 0.0, None  # seconds it took so far, and running since


def now() -> float:
    return source()


def working() -> float:
    """`now` without the seconds of the compiler, in whichever thread that ran."""
    if source is not time.perf_counter:
        return source()
    while True:
        state, moment = _compiler, time.perf_counter()
        if state is _compiler:  # and so has not run in between
            seconds, since = state
            return (moment if since is None else since) - seconds


def compiled() -> float:
    """Seconds that this process has spent compiling; none by a clock that was set."""
    seconds, since = _compiler
    if source is not time.perf_counter:
        return 0.0
    return seconds if since is None else seconds + time.perf_counter() - since


def start_compiler() -> None:
    """The compiler begins; it runs in one thread at a time."""
    global _compiler
    _compiler = _compiler[0], time.perf_counter()


def stop_compiler() -> None:
    """The compiler is done."""
    global _compiler
    seconds, since = _compiler
    if since is not None:
        _compiler = seconds + time.perf_counter() - since, None


@contextmanager
def timed_by(other: Callable[[], float]) -> Iterator[None]:
    """Another clock for a while."""
    global source
    before, source = source, other
    try:
        yield
    finally:
        source = before


class ErraticClock:
    """A clock that is the same in every run, and never calm.

    For about twenty rounds a stage takes this long and another one that; then they change.  So
    drafts come to pay, cease to, and come to pay again.
    """

    def __init__(self, seed: int) -> None:
        self._generator = Random(seed)
        self._num_readings = 0
        self._seconds = 0.0
        self._stages = [0.0] * NUM_STAGES

    def __call__(self) -> float:
        if self._num_readings % SPELL == 0:
            self._stages = [self._generator.lognormvariate(-7, 1) for _ in range(NUM_STAGES)]
        stage = self._stages[self._num_readings % NUM_STAGES]
        self._num_readings += 1
        self._seconds += stage * self._generator.uniform(0.5, 1.5)
        return self._seconds
