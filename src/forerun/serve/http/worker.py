"""Work that would hold up the event loop, in threads that nobody has to wait for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

from forerun.serve.admission.errors import overloaded
from forerun.serve.http.turns import Turns

MOST_STUCK = 8
"""Threads that may be at work after they were given up; beyond that, work is refused at once."""

Result = TypeVar("Result")


class Worker:
    """Does one piece of work at a time, each in a daemon thread of its own, fairly between owners.

    seconds: what a piece of work may take, waiting included.  A thread cannot be stopped: one that
    is given up ends when its work does, and neither those who wait nor the process's exit wait
    for it.
    """

    def __init__(self, name: str, seconds: float) -> None:
        self._name = name
        self._seconds = seconds
        self._turns = Turns()
        self._num_threads = 0

    async def run(self, work: Callable[[], Result], owner: str = "") -> Result:
        """The result of some work of an owner's; `ApiError` 503 if that takes too long."""
        if self._num_threads > MOST_STUCK:
            raise overloaded("The server is busy with requests that are costly to read.")
        try:
            async with asyncio.timeout(self._seconds) as limit, self._turns.turn(owner):
                return await self._start(work)
        except TimeoutError as error:
            if not limit.expired():
                raise
            message = (
                "The server was too busy to read this request or to write its answer within "
                f"{self._seconds:g} seconds. Try again in a few seconds."
            )
            raise overloaded(message) from error

    def _start(self, work: Callable[[], Result]) -> asyncio.Future[Result]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()

        def settle(settle_future: Callable[[], None]) -> None:
            self._num_threads -= 1
            if not future.done():
                settle_future()

        def main() -> None:
            try:
                settled = partial(future.set_result, work())
            except Exception as error:
                settled = partial(future.set_exception, error)
            with suppress(RuntimeError):  # the loop has closed meanwhile
                loop.call_soon_threadsafe(settle, settled)

        self._num_threads += 1
        threading.Thread(target=main, name=self._name, daemon=True).start()
        return future
