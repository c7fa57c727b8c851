"""Who killed an engine: after a death the requests that were there return one at a time.

A model that raises (out of memory, say) does not tell whose text it was.  So all of them are
suspects, and each is alone in being one until it has gained a token.  An engine that dies
meanwhile was killed by the one on trial, which ends; the others go on.
"""

from __future__ import annotations

import asyncio
from weakref import ref

from forerun.engine.async_engine import AsyncEngine


class Trial:
    """One suspect at a time."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._engine: ref[AsyncEngine] | None = None  # where somebody is, or was last, on trial

    async def begin(self) -> None:
        await self._turn.acquire()

    def enter(self, engine: AsyncEngine) -> None:
        """The one on trial has been submitted."""
        self._engine = ref(engine)

    def end(self, *, is_guilty: bool) -> None:
        if not is_guilty:
            self._engine = None
        self._turn.release()

    def explains(self, engine: AsyncEngine) -> bool:
        """Whether the death of an engine is that of the one on trial there."""
        return self._engine is not None and self._engine() is engine
