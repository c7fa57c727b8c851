"""Engines by drafter and rule: made when first needed, replaced if they fail, closed when idle."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

from forerun.base.errors import LOG, ForerunError
from forerun.drafters.base import Drafter
from forerun.engine.answer_options import MOST
from forerun.engine.pacing import SLOWDOWN
from forerun.generation.async_engine import AsyncEngine
from forerun.rules.types import DraftLength
from forerun.serve.admission.engine_roles import Pair
from forerun.serve.admission.errors import ApiError

MOST_ENGINES = 4
"""If there are more idle engines than this, some are closed, because each has rows of its own."""

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
"""Seconds between attempts to replace an engine that cannot be made: the first pause, and the
longest."""

CLOSE_SECONDS = 5.0
"""How long a shutdown waits for the passes that engines are in."""


class Engines:
    """One engine for each (drafter, rule) pair in use, all with the same target.

    on_restart: called when a failed engine has been replaced.
    """

    def __init__(
        self,
        target: Any,
        drafters: Mapping[str, Drafter | None],
        *,
        draft_length: DraftLength,
        max_batch: int,
        slowdown: float = SLOWDOWN,
        on_restart: Callable[[], None],
    ) -> None:
        self._target = target
        self._drafters = drafters
        self._draft_length = draft_length
        self._max_batch = max_batch
        self._slowdown = slowdown
        self._on_restart = on_restart
        self._engines: dict[Pair, AsyncEngine] = {}  # the one asked for last comes last
        self._alone: set[AsyncEngine] = set()  # those of one request
        self._broken: dict[Pair, asyncio.Task[None]] = {}  # on the way to be replaced
        self._replacements: dict[Pair, asyncio.Task[None]] = {}
        self._closings: set[asyncio.Task[None]] = set()
        self._lock = asyncio.Lock()

    @property
    def is_sound(self) -> bool:
        """Whether no engine has failed without having been replaced."""
        return not self._broken and not self._replacements

    @property
    def num_running(self) -> int:
        return sum(engine.num_running for engine in (*self._engines.values(), *self._alone))

    def __len__(self) -> int:
        return len(self._engines)

    async def get(self, pair: Pair) -> AsyncEngine:
        """A working engine for a pair. Submit to it before awaiting anything else."""
        if pair in self._engines and self._engines[pair].failure is None:
            self._engines[pair] = self._engines.pop(pair)
            return self._engines[pair]
        async with self._lock:
            engine = self._engines.pop(pair, None)
            was_dead = engine is not None and engine.failure is not None
            if engine is not None and was_dead:
                LOG.error("An engine has failed and is replaced.", exc_info=engine.failure)
                self._close(engine)
            if engine is None or was_dead:
                engine = await self._made(pair)
                if was_dead:
                    self._on_restart()
            self._engines[pair] = engine
            self._close_idle(keeping=pair)
            return engine

    def replace(self, pair: Pair, dead: AsyncEngine) -> None:
        """Replace a failed engine, even if no request is waiting for it."""
        if self._engines.get(pair) is dead and pair not in self._replacements:
            self._replacements[pair] = asyncio.create_task(self._replace(pair))

    async def _replace(self, pair: Pair) -> None:
        try:
            with suppress(ApiError):  # requests for the pair report it
                await self.get(pair)
        finally:
            del self._replacements[pair]

    @asynccontextmanager
    async def alone(self, pair: Pair) -> AsyncIterator[AsyncEngine]:
        """A separate engine with one row, for the duration of the block."""
        try:
            engine = await asyncio.to_thread(self._make, pair, max_batch=1)
        except Exception as error:
            raise _restarting() from error
        self._alone.add(engine)
        try:
            yield engine
        finally:
            self._alone.remove(engine)
            self._close(engine)

    async def close(self) -> None:
        """Close all engines; running requests end as cancelled.

        An engine whose pass never returns is abandoned: its thread does not keep the process from
        ending.
        """
        replacements = list(self._replacements.values())
        for task in (*self._broken.values(), *replacements):
            task.cancel()
        await asyncio.gather(*replacements, return_exceptions=True)
        while self._engines:
            _, engine = self._engines.popitem()
            self._close(engine)
        if not self._closings:
            return
        _, stuck = await asyncio.wait(self._closings, timeout=CLOSE_SECONDS)
        for task in stuck:
            task.cancel()
        if stuck:
            LOG.warning(
                "%d engines are in a pass that has not returned for %g seconds; left behind.",
                len(stuck),
                CLOSE_SECONDS,
            )

    async def _made(self, pair: Pair) -> AsyncEngine:
        """Make an engine. If that fails, it is tried again until it succeeds."""
        try:
            engine = await asyncio.to_thread(self._make, pair)
        except ForerunError as error:  # the pair does not fit, and its request says so
            raise ApiError(str(error), param="speculation") from error
        except Exception as error:
            LOG.exception("An engine could not be made.")
            if pair not in self._broken:
                self._broken[pair] = asyncio.create_task(self._revive(pair))
            raise _restarting() from error
        if revival := self._broken.pop(pair, None):
            if revival is not asyncio.current_task():
                revival.cancel()
            self._on_restart()
        return engine

    def _make(self, pair: Pair, max_batch: int | None = None) -> AsyncEngine:
        drafter, rule = pair
        return AsyncEngine(
            self._target,
            drafter=self._drafters[drafter],
            draft_length=self._draft_length,
            rule=rule,
            max_batch=max_batch or self._max_batch,
            slowdown=self._slowdown,
            max_waiting=MOST,  # the desk has refused whoever is too much
        )

    async def _revive(self, pair: Pair) -> None:
        pause = FIRST_PAUSE
        while pair in self._broken:
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
            try:
                await self.get(pair)
            except ApiError:
                continue

    def _close_idle(self, keeping: Pair) -> None:
        """Close the least recently used idle engines, as long as there are too many."""
        for pair, engine in list(self._engines.items()):
            if len(self._engines) <= MOST_ENGINES:
                return
            if pair != keeping and not engine.num_running and not engine.num_waiting:
                self._close(self._engines.pop(pair))

    def _close(self, engine: AsyncEngine) -> None:
        task = asyncio.create_task(engine.close())
        self._closings.add(task)
        task.add_done_callback(self._closings.discard)


def _restarting() -> ApiError:
    message = "The engine is being restarted; try again soon."
    return ApiError(message, status=503, kind="server_error", retry_after=5.0)
