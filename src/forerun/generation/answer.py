"""A running request, for use in coroutines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import suppress
from typing import Any

from forerun.base.errors import InputError, explain
from forerun.engine.request import Request
from forerun.engine.results import Generation, Piece, Stats


class Answer(AsyncIterator[Piece]):
    """A running request: iterate over its pieces, await its `Generation`, or abort it.

    Several coroutines may await it, so a timeout of one of them (`asyncio.wait_for`) does not end
    the request.
    """

    def __init__(self, request: Request, engine: Any, abort: Callable[[Answer], bool]) -> None:
        self.request = request
        self.num_told = 0  # tokens in its pieces
        self.has_entered = False  # whether it has, or had, a row
        self._engine = engine  # not collected before the answer has ended
        self._abort = abort
        self._loop = _running_loop()
        self._pieces: asyncio.Queue[Piece | None] = asyncio.Queue()
        self._end: asyncio.Future[None] = self._loop.create_future()
        self._on_entry: Callable[[], None] | None = None

    def __await__(self) -> Generator[Any, None, Generation]:
        yield from asyncio.shield(self._end).__await__()
        return self.request.generation()

    async def __anext__(self) -> Piece:
        piece = await self._pieces.get()
        if piece is None:
            self._pieces.put_nowait(None)  # for whoever else iterates
            self._end.result()  # raises what ended the request, if anything did
            raise StopAsyncIteration
        return piece

    @property
    def stats(self) -> Stats:
        """The counts so far; the engine's thread may still be adding to them."""
        return self.request.stats

    @property
    def end(self) -> asyncio.Future[None]:
        """A future that finishes when the request has ended. Wait for it, but do not cancel it."""
        return self._end

    def take_ready(self) -> list[Piece]:
        """The pieces that have arrived already, without waiting."""
        pieces = []
        while not self._pieces.empty() and (piece := self._pieces.get_nowait()) is not None:
            pieces.append(piece)
        if self._end.done():
            self._pieces.put_nowait(None)
        return pieces

    def abort(self) -> bool:
        """End the request; its row is free in the next round. Returns False if it has already
        ended."""
        return self._abort(self)

    def when_entered(self, listener: Callable[[], None]) -> None:
        """Set a function that is called, in the event loop, when the request gets a row. Set it
        right after `submit`, before awaiting anything."""
        self._on_entry = listener

    def enter(self) -> None:
        """Record that the request got a row; called once, in the engine's thread."""
        self.has_entered = True
        self._call(self._tell_entry)

    def _tell_entry(self) -> None:
        if self._on_entry is not None:
            self._on_entry()

    def tell(self, piece: Piece) -> None:
        """Hand a piece to the reader; called in the engine's thread. Unread pieces are kept, at
        most one for each token."""
        self.num_told += len(piece.tokens)
        self._call(self._pieces.put_nowait, piece)

    def finish(self, error: Exception | None) -> None:
        """Tell the reader that the request has ended; called once, in the engine's thread."""
        self._call(self._set_end, error)

    def _set_end(self, error: Exception | None) -> None:
        """Resolve the future and end the iteration over pieces; called in the event loop."""
        if not self._end.done():
            if error is None:
                self._end.set_result(None)
            else:
                self._end.set_exception(error)
                self._end.exception()  # a request nobody awaits is no unhandled error
        self._pieces.put_nowait(None)
        self._engine = None

    def _call(self, function: Callable[..., None], *arguments: Any) -> None:
        with suppress(RuntimeError):  # the owner's loop is closed: there is nobody to tell
            self._loop.call_soon_threadsafe(function, *arguments)


def _running_loop() -> asyncio.AbstractEventLoop:
    try:
        return asyncio.get_running_loop()
    except RuntimeError as error:
        cure = "Call submit in a coroutine; without asyncio use fr.generate or fr.stream."
        wrong = "An answer belongs to a running event loop."
        raise InputError(explain(wrong, "none in this thread", cure)) from error
