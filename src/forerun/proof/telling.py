"""How far a long test is, on standard error: one rewritten line on a terminal, else a few lines."""

from __future__ import annotations

import sys

from forerun.base.clock import now

FIRST = 2.0  # seconds before anything is told
EVERY = 10.0  # seconds between two lines
REFRESH = 0.5  # seconds between two states of the line on a terminal


def silent(case: str, done: int, total: int) -> None:
    """Progress that nobody sees."""


class Telling:
    """Told the progress, it prints it now and then, with the time left."""

    def __init__(self) -> None:
        self._start = now()
        self._next = self._start + FIRST
        self._width = 0  # of the line that is shown

    def begin(self, text: str) -> None:
        """Something else begins: say what, and count time from here."""
        self.end()
        print(text, file=sys.stderr, flush=True)
        self._start = now()
        self._next = self._start + FIRST

    def __call__(self, case: str, done: int, total: int) -> None:
        moment = now()
        if moment < self._next or not done:
            return
        left = (moment - self._start) / done * (total - done)
        line = f"certify: {done:,} of {total:,} ({case}), about {_duration(left)} left"
        is_terminal = sys.stderr.isatty()
        self._next = moment + (REFRESH if is_terminal else EVERY)
        if is_terminal:
            print(f"\r{line:<{self._width}}", end="", file=sys.stderr, flush=True)
            self._width = max(self._width, len(line))
        else:
            print(line, file=sys.stderr, flush=True)

    def end(self) -> None:
        """Erase the line on a terminal."""
        if self._width:
            print(f"\r{'':<{self._width}}\r", end="", file=sys.stderr, flush=True)
            self._width = 0


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
