"""Notices work that does not end: a rank is stopped, or a collective waits for a rank that is gone.

The clock only decides when to give up, never what is computed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

PERIOD = 0.5
"""Seconds between two checks."""


class Watchdog:
    """Watches one piece of work at a time, in a thread.

    seconds: the longest that work may take.
    on_overrun: called once, with a description, if it takes longer.
    is_alone: called while work is running; if it returns true, `on_overrun` is called at once.
    """

    def __init__(
        self,
        seconds: float,
        on_overrun: Callable[[str], None],
        is_alone: Callable[[], bool] = lambda: False,
    ) -> None:
        self.seconds = seconds
        self._on_overrun = on_overrun
        self._is_alone = is_alone
        self._work: tuple[str, float, float] | None = None  # description, seconds, deadline
        self._is_over = threading.Event()
        threading.Thread(target=self._look, name="forerun-watchdog", daemon=True).start()

    def begin(self, what: str, seconds: float | None = None) -> None:
        """Begin to watch a piece of work.  seconds: the longest it may take; None for the usual."""
        limit = self.seconds if seconds is None else seconds
        self._work = (what, limit, time.monotonic() + limit)

    def end(self) -> None:
        """Note that the work has ended."""
        self._work = None

    def close(self) -> None:
        """End the thread."""
        self._is_over.set()

    def _look(self) -> None:
        while not self._is_over.wait(PERIOD):
            work = self._work
            if work is None:
                continue
            what, limit, deadline = work
            if self._is_alone():
                self._on_overrun(f"rank 0 ended during {what}")
            elif time.monotonic() > deadline:
                self._on_overrun(f"{what} took longer than {limit:g} s")
            else:
                continue
            return
