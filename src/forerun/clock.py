"""The clock that steers drafts: rounds and drafters are timed by it.

What is learned from real times differs from run to run.  Tests set a clock of their own.
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


def now() -> float:
    return source()


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
