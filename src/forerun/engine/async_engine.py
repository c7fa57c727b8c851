"""An engine to await: requests from coroutines, answered together in a thread of its own.

    async with fr.AsyncEngine(target, drafter=fr.drafters.Suffix()) as engine:
        answer = engine.submit("Once upon a time", max_new_tokens=64)
        async for piece in answer:
            print(piece.text, end="")
        print((await answer).finish_reason)

Rounds run in one thread, which blocks no event loop.  Between rounds it takes in new requests and
lets go of aborted ones, so nobody waits longer than a round to be heard.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from contextlib import suppress
from typing import Any, get_args

from forerun import rules
from forerun.clock import now
from forerun.drafters.base import Drafter
from forerun.drafters.forced import Forced
from forerun.drafters.verbs import check_verbs
from forerun.engine.checks import (
    check_choice,
    check_counts,
    given_of,
    idle_options,
    limits_of,
    samplings_of,
)
from forerun.engine.engine import Engine
from forerun.engine.generate import GREEDY, piece_of
from forerun.engine.intake import make_samples
from forerun.engine.request import Request
from forerun.engine.results import Generation, LogprobsOf, Piece
from forerun.engine.schedule import check_room
from forerun.errors import GenerationError, InputError, explain
from forerun.models.load import wrap
from forerun.rules.base import Rule
from forerun.sampling import Sampling
from forerun.tree import Tree
from forerun.types import DraftLength


class Answer(AsyncIterator[Piece]):
    """One request on its way: iterate over its pieces, await its `Generation`, or abort it."""

    def __init__(self, engine: AsyncEngine, request: Request) -> None:
        self.request = request
        self._engine = engine
        self._loop = _running_loop()
        self._pieces: asyncio.Queue[Piece | None] = asyncio.Queue()
        self._end: asyncio.Future[None] = self._loop.create_future()

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

    def abort(self) -> bool:
        """End the request; its row is free in the next round.  False if it has ended already."""
        return self._engine._abort(self)

    def _tell(self, piece: Piece) -> None:
        """Called in the engine's thread."""
        self._call(self._pieces.put_nowait, piece)

    def _finish(self, error: Exception | None) -> None:
        """Called in the engine's thread, once."""
        self._call(self._set_end, error)

    def _set_end(self, error: Exception | None) -> None:
        if not self._end.done():
            if error is None:
                self._end.set_result(None)
            else:
                self._end.set_exception(error)
                self._end.exception()  # a request nobody awaits is no unhandled error
        self._pieces.put_nowait(None)

    def _call(self, function: Callable[..., None], *arguments: Any) -> None:
        with suppress(RuntimeError):  # the owner's loop is closed: there is nobody to tell
            self._loop.call_soon_threadsafe(function, *arguments)


class AsyncEngine:
    """Answers requests as they come, several in one pass.

    target, drafter, draft_length, tree, rule: as for `generate`.
    max_batch: requests that share a pass.  max_waiting: requests that may wait for a row; one more
    is refused with `EngineFullError`.  Close it, or use it with `async with`: its thread keeps it.
    """

    def __init__(
        self,
        target: Any,
        *,
        drafter: Drafter | None = None,
        draft_length: DraftLength = "auto",
        tree: int | Tree | None = None,
        rule: str | Rule = "match",
        max_batch: int = 8,
        max_waiting: int = 1024,
    ) -> None:
        check_counts(draft_length, max_batch=max_batch, max_waiting=max_waiting)
        if drafter is not None:
            check_verbs(drafter)
        self._note = idle_options(draft_length, tree) if drafter is None else None
        self.target = wrap(target)
        self._max_waiting = max_waiting
        self._engine = Engine(
            self.target,
            drafter=None if drafter is None else Forced(drafter),
            draft_length=draft_length,
            tree=tree,
            rule=rules.get(rule),
            num_rows=max_batch,
            is_paced=True,
        )
        self._lock = threading.Condition()
        self._new: deque[Answer] = deque()
        self._aborted: list[Answer] = []
        self._answers: dict[int, Answer] = {}  # by the engine's number
        self._is_closing = False
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._work, name="forerun-engine", daemon=True)
        self._thread.start()

    def submit(
        self,
        prompt: Any,
        *,
        sampling: Sampling = GREEDY,
        max_new_tokens: int = 128,
        stop: str | Sequence[str] = (),
        stop_tokens: Sequence[int] = (),
        ignore_eos: bool = False,
        logprobs: int | None = None,
        logprobs_of: LogprobsOf = "model",
        resume: Sequence[int] = (),
        priority: int = 0,
        timeout: float | None = None,
    ) -> Answer:
        """Queue a request, from a coroutine; options as for `generate`.

        resume: output tokens that exist already, for instance from an engine that died.
        priority: a higher one gets a row first.  timeout: seconds after which the request ends as
        it is, with finish_reason "deadline".
        """
        check_choice("logprobs_of", logprobs_of, get_args(LogprobsOf))
        check_counts("auto", logprobs=logprobs)
        if timeout is not None and not timeout > 0:
            cure = "Pass the seconds that the request may take, or None."
            raise InputError(explain("The deadline has passed already.", timeout, cure))
        (options,), (limit,) = samplings_of(sampling, 1), limits_of(max_new_tokens, 1)
        if options.n != 1:
            cure = "Submit each sample as a request of its own, with a seed of its own."
            raise InputError(explain("A request has one answer.", f"n={options.n}", cure))
        (given,) = given_of(resume, 1, is_one=True)
        (request,) = make_samples(
            self.target,
            prompt,
            options,
            max_new_tokens=limit,
            stop=stop,
            stop_tokens=stop_tokens,
            ignore_eos=ignore_eos,
            num_logprobs=logprobs,
            logprobs_of=logprobs_of,
            given=given,
            priority=priority,
            deadline=None if timeout is None else now() + timeout,
        )
        request.stats.notes += [] if self._note is None else [self._note]
        answer = Answer(self, request)
        with self._lock:
            self._check_open()
            check_room(len(self._new) + self._engine.num_waiting, self._max_waiting)
            self._new.append(answer)
            self._lock.notify()
        return answer

    async def close(self) -> None:
        """Abort what is running, and end the thread."""
        with self._lock:
            self._is_closing = True
            self._lock.notify()
        await asyncio.to_thread(self._thread.join)

    async def __aenter__(self) -> AsyncEngine:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _check_open(self) -> None:
        if self._failure is not None:
            raise GenerationError(f"The engine has failed: {self._failure!r}.", None)
        if self._is_closing:
            cure = "Make a new AsyncEngine."
            raise InputError(explain("The engine is closed.", "a request", cure))

    def _abort(self, answer: Answer) -> bool:
        with self._lock:
            if answer.request.finish_reason is not None or self._is_closing:
                return False
            self._aborted.append(answer)
            self._lock.notify()
            return True

    def _work(self) -> None:
        """The thread: take in, abort, one round, tell; until closed."""
        try:
            while self._take_in():
                for request, gained in self._engine.step():
                    self._report(request, gained)
        except Exception as error:  # of the model itself: nobody's request can go on
            self._failure = error
        try:
            self._engine.close()
        except Exception as error:
            self._failure = self._failure or error
        with self._lock:
            self._is_closing = True
            unheard = [*self._answers.values(), *self._new]
            self._new.clear()
        for answer in unheard:
            request = answer.request
            if self._failure is None:
                request.finish_reason = "cancelled"
            else:
                request.fail(f"with the engine: {self._failure!r}.", self._failure)
            self._end(answer)

    def _take_in(self) -> bool:
        """Wait for something to do; false when the engine is to end."""
        with self._lock:
            while not (self._new or self._aborted or self._is_closing or self._engine.busy):
                self._lock.wait()
            if self._is_closing:
                return False
            while self._new:
                answer = self._new[0]
                self._answers[self._engine.submit(answer.request)] = answer
                self._new.popleft()
            aborted, self._aborted = self._aborted, []
        for answer in aborted:
            if answer.request.number in self._answers:
                self._engine.abort(answer.request.number)
                self._report(answer.request, 0)
        return True

    def _report(self, request: Request, gained: int) -> None:
        """Tell a request's owner what a round gave it."""
        if request.finish_reason is None:
            self._answers[request.number]._tell(piece_of(request, gained))
        else:
            self._end(self._answers.pop(request.number), gained)

    def _end(self, answer: Answer, gained: int = 0) -> None:
        """Tell a request's owner the last of it."""
        request, error = answer.request, None
        answer._tell(piece_of(request, gained))
        if request.error is not None:
            message = f"The request failed {request.error}"
            error = GenerationError(message, request.generation())
            error.__cause__ = request.cause
        answer._finish(error)


def _running_loop() -> asyncio.AbstractEventLoop:
    try:
        return asyncio.get_running_loop()
    except RuntimeError as error:
        cure = "Call submit in a coroutine; without asyncio use fr.generate or fr.stream."
        wrong = "An answer belongs to a running event loop."
        raise InputError(explain(wrong, "none in this thread", cure)) from error
