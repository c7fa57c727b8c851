"""Divides a fixed number of rows among all engines, and decides who gets the next free one.

Each drafter and rule in use has an engine with its own rows, but the device has room for only so
many rows in all. A choice is handed to its engine when a row is free. Waiting choices are ordered
as in an engine's queue: by priority, then the owner with the fewest rows, then arrival.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import count

from forerun.engine.queue import Queue
from forerun.serve.admission.engine_roles import Pair

STANDBY_SHARE = 4
"""If all rows belong to one engine, some choices wait in the engine's own queue, a quarter as many
as there are rows. So when a row becomes free, the next round can begin a choice without asking the
event loop."""


@dataclass(frozen=True, eq=False)
class _Waiter:
    pair: Pair
    owner: str
    priority: int
    number: int
    turn: asyncio.Future[None]

    @property
    def has_row(self) -> bool:
        """Whether the waiter was given a row. A waiter that was cancelled leaves the queue a little
        later."""
        return self.turn.done() and not self.turn.cancelled()


class RowBudget:
    """Gives rows to coroutines that wait for one.

    num_rows: how many choices may have a row at once, in all engines together.
    """

    def __init__(self, num_rows: int) -> None:
        self._num_rows = num_rows
        self._num_standby = max(1, num_rows // STANDBY_SHARE)
        self._by_pair: Counter[Pair] = Counter()
        self._waiting = Queue[_Waiter]()
        self._numbers = count()

    @asynccontextmanager
    async def row(
        self, pair: Pair, owner: str, priority: int, seconds: float | None
    ) -> AsyncIterator[bool]:
        """Wait for a row of a pair's engine, and hold it during the block. Yields whether there is
        one.

        seconds: after this time the block is entered without a row.
        """
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiter = _Waiter(pair, owner, priority, next(self._numbers), turn)
        self._waiting.push(waiter)
        self._hand_out()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await turn
            yield waiter.has_row
        finally:
            self._give_back(waiter)
            self._hand_out()

    def _hand_out(self) -> None:
        """Give rows to the waiters in order. If there is no room for the first one, nobody
        overtakes it."""
        while (first := self._waiting.pop()) is not None:
            if first.turn.done():  # it was cancelled
                self._waiting.row_left(first.owner)
            elif self._has_room(first.pair):
                self._by_pair[first.pair] += 1
                first.turn.set_result(None)
            else:
                self._waiting.put_back(first)
                return

    def _has_room(self, pair: Pair) -> bool:
        num_held = self._by_pair.total()
        is_alone = num_held == self._by_pair[pair]
        return num_held < self._num_rows + (self._num_standby if is_alone else 0)

    def _give_back(self, waiter: _Waiter) -> None:
        """Return the row of a waiter; does nothing if it was cancelled before it had one."""
        if waiter.has_row:
            self._by_pair -= Counter({waiter.pair: 1})
            self._waiting.row_left(waiter.owner)
        elif waiter.number in self._waiting:
            self._waiting.remove(waiter.number)
