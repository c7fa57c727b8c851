"""Notices work that does not end: a rank that is stopped, or a collective that waits for nobody.

The clock is read to give up, never to decide what is computed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

PERIOD = 0.5
"""Seconds between two looks."""


class Watchdog:
    """Watches one piece of work at a time.

    seconds: what it may take.
    on_overrun: called once, with a description, if it takes longer.
    is_alone: asked while work is under way; if true, `on_overrun` is called at once.
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
        self._work: tuple[str, float, float] | None = None  # what, its seconds, when they are over
        self._is_over = threading.Event()
        threading.Thread(target=self._look, name="forerun-watchdog", daemon=True).start()

    def begin(self, what: str, seconds: float | None = None) -> None:
        """Work begins; seconds: what this piece may take, if not the usual."""
        limit = self.seconds if seconds is None else seconds
        self._work = (what, limit, time.monotonic() + limit)

    def end(self) -> None:
        self._work = None

    def close(self) -> None:
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
