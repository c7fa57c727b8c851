"""The interfaces that the desk needs of engines, whether they run in this process or in
replicas."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from forerun.engine.request import Request
from forerun.engine.results import Generation, Piece, Stats

Pair = tuple[str, str]
"""The names of a drafter and a rule."""


class Writing(Protocol):
    """A running answer; see `forerun.generation.answer.Answer`."""

    @property
    def has_entered(self) -> bool: ...
    @property
    def stats(self) -> Stats: ...

    def abort(self) -> bool: ...
    def when_entered(self, listener: Callable[[], None]) -> None: ...
    def __aiter__(self) -> AsyncIterator[Piece]: ...
    def __await__(self) -> Generator[Any, None, Generation]: ...


class PooledEngine(Protocol):
    """An engine that takes requests until it fails; see `AsyncEngine`."""

    @property
    def failure(self) -> Exception | None: ...

    def enqueue(self, request: Request) -> Writing: ...


class Pool(Protocol):
    """Provides an engine for each drafter and rule; see
    `forerun.serve.admission.engines.Engines`."""

    @property
    def is_sound(self) -> bool: ...
    @property
    def num_running(self) -> int: ...

    async def get(self, pair: Pair) -> PooledEngine: ...
    def alone(self, pair: Pair) -> AbstractAsyncContextManager[PooledEngine]: ...
    def replace(self, pair: Pair, dead: Any) -> None: ...
    async def close(self) -> None: ...
