"""The clock that times rounds and drafters. Its times decide how much is drafted.

It stands still while code is compiled, because compilation happens once on a machine and says
nothing about the next round. Real times differ from run to run, so tests use a clock of their own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random

NUM_STAGES = 5  # stages of a round, the time between two rounds included
SPELL = 20 * NUM_STAGES  # readings after which the durations of `ErraticClock` change

source: Callable[[], float] = time.perf_counter
"""The clock in use: a function that returns seconds since some moment."""


is_code_kept = True
"""Whether compiled code is kept on disk for the next process."""

_compiler: tuple[float, float | None] = 0.0, None  # its seconds so far, and when it began to run


def now() -> float:
    """The reading of the clock, in seconds."""
    return source()


def working() -> float:
    """The clock's seconds, excluding the time that the compiler ran in any thread."""
    if source is not time.perf_counter:
        return source()
    while True:
        state, moment = _compiler, time.perf_counter()
        if state is _compiler:  # it has not changed between the two readings
            seconds, since = state
            return (moment if since is None else since) - seconds


def compiled() -> float:
    """The seconds that this process has spent compiling; 0 if another clock is in use."""
    seconds, since = _compiler
    if source is not time.perf_counter:
        return 0.0
    return seconds if since is None else seconds + time.perf_counter() - since


def start_compiler() -> None:
    """Note that the compiler begins; it runs in one thread at a time."""
    global _compiler
    _compiler = _compiler[0], time.perf_counter()


def stop_compiler() -> None:
    """Note that the compiler has ended."""
    global _compiler
    seconds, since = _compiler
    if since is not None:
        _compiler = seconds + time.perf_counter() - since, None


@contextmanager
def timed_by(other: Callable[[], float]) -> Iterator[None]:
    """Use another clock within the context."""
    global source
    before, source = source, other
    try:
        yield
    finally:
        source = before


class ErraticClock:
    """A clock for tests whose readings depend on the seed alone, and change all the time.

    Each stage of a round has a random duration for about twenty rounds, then another.  So drafting
    pays for some time, then does not, and then pays again.
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
