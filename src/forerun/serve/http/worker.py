"""Runs work that would block the event loop in threads, fairly among owners."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from forerun.serve.admission.errors import overloaded
from forerun.serve.admission.keys import Key

if TYPE_CHECKING:
    from starlette.types import Scope


@dataclass(frozen=True, eq=False)
class _Waiter:
    owner: str
    turn: asyncio.Future[None]


class Turns:
    """Turns that are shared fairly among owners.

    Each owner has a time at which its next turn is due: when the seconds that its earlier turns
    took have passed. The next turn goes to the owner that is due first, so a new owner comes before
    one who has used much time. When nobody waits, all due times are forgotten.
    """

    def __init__(self) -> None:
        self._is_taken = False
        self._waiting: list[_Waiter] = []
        self._due = 0.0  # when the present turn was
        self._next_due: dict[str, float] = {}  # by owner

    @asynccontextmanager
    async def turn(self, owner: str) -> AsyncIterator[None]:
        """Wait for a turn, and hold it during the block."""
        await self._wait(owner)
        self._due = self._due_of(owner)
        start = time.perf_counter()
        try:
            yield
        finally:
            self._next_due[owner] = self._due + time.perf_counter() - start
            self._hand_on()

    async def _wait(self, owner: str) -> None:
        """Wait until it is this owner's turn."""
        if not self._is_taken:
            self._is_taken = True
            return
        waiter = _Waiter(owner, asyncio.get_running_loop().create_future())
        self._waiting.append(waiter)
        try:
            await waiter.turn
        except asyncio.CancelledError:
            if waiter.turn.cancelled():
                self._waiting.remove(waiter)
            else:  # it was given its turn in the same step
                self._hand_on()
            raise

    def _hand_on(self) -> None:
        """Give the turn to the waiting owner that is due first."""
        waiting = [waiter for waiter in self._waiting if not waiter.turn.done()]
        if not waiting:
            self._is_taken = False
            self._next_due.clear()
            return
        first = min(waiting, key=lambda waiter: self._due_of(waiter.owner))
        self._waiting.remove(first)
        first.turn.set_result(None)

    def _due_of(self, owner: str) -> float:
        return max(self._due, self._next_due.get(owner, 0.0))


def owner_of(scope: Scope) -> str:
    """The owner that a request belongs to for fairness: its key, or its address if there are no
    keys."""
    key: Key = scope["state"]["key"]
    client = scope.get("client")
    return key.owner or (client[0] if client else "")


MOST_STUCK = 8
"""The most abandoned threads that may still be running; beyond that, work is refused at once."""

Result = TypeVar("Result")


class Worker:
    """Does one piece of work at a time, each in its own daemon thread, fairly among owners.

    seconds: the limit for one piece of work, waiting included. A thread cannot be stopped: if it
    exceeds the limit, it is abandoned and runs on, and neither other work nor the exit of the
    process waits for it.
    """

    def __init__(self, name: str, seconds: float) -> None:
        self._name = name
        self._seconds = seconds
        self._turns = Turns()
        self._num_threads = 0

    async def run(self, work: Callable[[], Result], owner: str = "") -> Result:
        """Do some work for an owner and return its result; raises `ApiError` 503 if it takes too
        long."""
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
        """Do some work in a new thread. Its result or exception arrives in the event loop."""
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
