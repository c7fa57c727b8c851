"""Who is next: one at a time, and fair between owners by the seconds that they have taken."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forerun.serve.admission.keys import Key

if TYPE_CHECKING:
    from starlette.types import Scope


@dataclass(frozen=True, eq=False)
class _Waiter:
    owner: str
    turn: asyncio.Future[None]


class Turns:
    """An owner's turns are due one after the other, each when the seconds of those before it are
    over, and none before the present turn was.  The next turn is the one that is due first: an
    owner who comes anew goes before one who has taken much.  When nobody waits, all is forgotten.
    """

    def __init__(self) -> None:
        self._is_taken = False
        self._waiting: list[_Waiter] = []
        self._due = 0.0  # when the present turn was
        self._next_due: dict[str, float] = {}  # by owner

    @asynccontextmanager
    async def turn(self, owner: str) -> AsyncIterator[None]:
        """Wait for a turn, and keep it within the block."""
        await self._wait(owner)
        self._due = self._due_of(owner)
        start = time.perf_counter()
        try:
            yield
        finally:
            self._next_due[owner] = self._due + time.perf_counter() - start
            self._hand_on()

    async def _wait(self, owner: str) -> None:
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
    """Whose turn a request takes: its key's, or where there are no keys its address's."""
    key: Key = scope["state"]["key"]
    client = scope.get("client")
    return key.owner or (client[0] if client else "")
