"""Reports on standard error which step is running, of how many, and how long the rest may take."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import TextIO

EVERY = 20.0  # seconds between two lines where nothing can be rewritten


class Progress:
    """The progress of a command, as one line that is rewritten on a terminal, or as a line now and
    then in a file or a pipe.

    with Progress("run", 40, done=14) as progress:
        progress.begin("ngram, K = 3")  # run 15 of 40: ngram, K = 3, about 4 min left
    """

    def __init__(
        self,
        unit: str,
        total: int,
        done: int = 0,
        stream: TextIO | None = None,
        sizes: Sequence[float] | None = None,
    ) -> None:
        """sizes: how long each step of this process takes, in any unit; None: all alike."""
        self.total = total
        self._sizes = [1.0] * (total - done) if sizes is None else list(sizes)
        self._unit = unit
        self._done = done  # steps that are over, earlier processes' included
        self._begun = 0  # steps of this process
        self._stream = sys.stderr if stream is None else stream
        self._is_terminal = self._stream.isatty()
        self._start = time.monotonic()
        self._told = -EVERY  # when the last line was written
        self._width = 0  # of the line on the terminal

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._write("")

    def begin(self, what: str) -> None:
        """Note that the next step begins, and that the one before is over."""
        self._done += self._begun > 0
        self._begun += 1
        now = time.monotonic()
        line = f"{self._unit} {self._done + 1} of {self.total}: {what}{self._left(now)}"
        if self._is_terminal:
            self._write(line)
        elif now - self._told >= EVERY:
            self._told = now
            print(line, file=self._stream, flush=True)

    def note(self, what: str) -> None:
        """Show something uncounted that runs before the next step."""
        if self._is_terminal:
            self._write(f"{what} ...")

    def _left(self, now: float) -> str:
        over = self._begun - 1
        if over == 0:
            return ""
        left = (now - self._start) / sum(self._sizes[:over]) * sum(self._sizes[over:])
        return f", about {duration(left)} left"

    def _write(self, line: str) -> None:
        if self._is_terminal:
            print(f"\r{line.ljust(self._width)}", end="", file=self._stream, flush=True)
            if not line:
                print(end="\r", file=self._stream, flush=True)
            self._width = len(line)


def duration(seconds: float) -> str:
    """Seconds in words: 90 -> "90 s", 200 -> "3 min", 10000 -> "2.8 h"."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
