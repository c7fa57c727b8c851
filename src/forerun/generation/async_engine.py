"""An engine for coroutines, which answers their requests together in a thread of its own.

    async with fr.AsyncEngine(target, drafter=fr.drafters.Suffix()) as engine:
        answer = engine.submit("Once upon a time", max_new_tokens=64)
        async for piece in answer:
            print(piece.text, end="")
        print((await answer).finish_reason)

Rounds run in one thread and block no event loop. Between rounds the thread takes in new requests
and ends aborted ones, so both take effect after one round at most.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any
from weakref import finalize

from forerun import rules
from forerun.base.errors import GenerationError, InputError, explain, shown
from forerun.drafters.base import Drafter
from forerun.drafters.forced import Forced
from forerun.engine.answer_options import GREEDY, AnswerOptions, check_counts
from forerun.engine.engine import Engine
from forerun.engine.pacing import SLOWDOWN, check_slowdown
from forerun.engine.request import Request
from forerun.engine.results import LogprobsOf
from forerun.engine.schedule import check_room
from forerun.generation.answer import Answer
from forerun.generation.choosing import drafter_for, idle_options
from forerun.generation.generate import piece_of
from forerun.generation.intake import make_samples
from forerun.generation.options import refuses_unknown
from forerun.generation.prompts import encode
from forerun.gpu_rounds.choosing import executor_of
from forerun.loading.load import wrap
from forerun.rules.base import Rule
from forerun.rules.types import DraftLength
from forerun.sampling.options import Sampling
from forerun.trees.tree import Tree


class EngineThread:
    """A thread that runs rounds while there are requests, and sleeps otherwise.

    max_waiting: more waiting requests than these are refused.
    """

    def __init__(self, engine: Engine, max_waiting: int) -> None:
        self._engine = engine
        self._engine.on_entry = lambda request: self._answers[request.number].enter()
        self._max_waiting = max_waiting
        self._lock = threading.Condition()
        self._new: deque[Answer] = deque()
        self._aborted: list[Answer] = []
        self._answers: dict[int, Answer] = {}  # by the engine's number
        self._is_closing = False
        self.failure: Exception | None = None
        self.thread = threading.Thread(target=self.work, name="forerun-engine", daemon=True)
        self.thread.start()

    @property
    def num_running(self) -> int:
        """The number of requests that have a row."""
        return len(self._engine.running)

    @property
    def num_waiting(self) -> int:
        """The number of requests that have no row yet."""
        return len(self._new) + self._engine.num_queued

    def submit(self, answer: Answer) -> None:
        """Queue a request."""
        self._engine.check_room(answer.request)
        with self._lock:
            self._check_open()
            check_room(len(self._new) + self._engine.num_waiting, self._max_waiting)
            self._new.append(answer)
            self._lock.notify()

    def close(self) -> None:
        """Abort the running requests, and let the thread end."""
        with self._lock:
            self._is_closing = True
            self._lock.notify()

    def _check_open(self) -> None:
        """Raise if the engine has failed or is closed."""
        if self.failure is not None:
            raise GenerationError(f"The engine has failed: {shown(self.failure)}.", None)
        if self._is_closing:
            cure = "Make a new AsyncEngine."
            raise InputError(explain("The engine is closed.", "a request", cure))

    def abort(self, answer: Answer) -> bool:
        """Ask the thread to end a request. Returns False if the request has already ended, or the
        thread is ending."""
        with self._lock:
            if answer.request.finish_reason is not None or self._is_closing:
                return False
            self._aborted.append(answer)
            self._lock.notify()
            return True

    def work(self) -> None:
        """The body of the thread: until closed, take in and abort requests, run one round,
        report."""
        try:
            while self._take_in():
                for request, gained in self._engine.step():
                    self._report(request, gained)
        except BaseException as error:  # of the model: nobody's request can go on
            # A panic in Rust, say of a tokenizer, is no `Exception`: it must not go unheard.
            self.failure = _as_exception(error)
        try:
            self._engine.close()
        except BaseException as error:
            self.failure = self.failure or _as_exception(error)
        with self._lock:
            self._is_closing = True
            unheard = [*self._answers.values(), *self._new]
            self._new.clear()
        for answer in unheard:
            request = answer.request
            if request.finish_reason is not None:
                pass  # it ended in the very round in which the engine failed
            elif self.failure is None:
                request.finish_reason = "cancelled"
            else:
                request.fail(f"with the engine: {shown(self.failure)}.", self.failure)
            self._end(answer, request.num_output - len(request.given) - answer.num_told)

    def _take_in(self) -> bool:
        """Wait for work and take it in. Returns False when the thread should end."""
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
        """Give the request's reader what a round has added."""
        if request.finish_reason is None:
            self._answers[request.number].tell(piece_of(request, gained))
        else:
            self._end(self._answers.pop(request.number), gained)

    def _end(self, answer: Answer, gained: int = 0) -> None:
        """Tell the request's reader that it has ended."""
        request, error = answer.request, None
        answer.tell(piece_of(request, gained))
        if request.error is not None:
            message = f"The request failed {request.error}"
            error = GenerationError(message, request.generation())
            error.__cause__ = request.cause
        answer.finish(error)


def _as_exception(error: BaseException) -> Exception:
    return error if isinstance(error, Exception) else RuntimeError(shown(error))


CLOSE_PAUSE = 0.002
"""Seconds between looks at whether the thread of a closed engine has ended."""


class AsyncEngine:
    """Answers requests as they come, several in one pass.

    target, drafter, draft_length, tree, rule: as for `generate`.
    max_batch: how many requests may share a pass.
    max_waiting: how many requests may wait for a row; one more is refused with `EngineFullError`.
    slowdown: a round that also reads prompts may take this many times as long as usual. More gives
    earlier first tokens and longer pauses between tokens.

    Close it, or use it with `async with`. If it is only dropped, its thread ends when it is
    garbage-collected, after its answers have ended.
    """

    def __init__(
        self,
        target: Any,
        *,
        drafter: Drafter | str | None = "auto",
        draft_length: DraftLength = "auto",
        tree: int | Tree | None = None,
        rule: str | Rule = "match",
        max_batch: int = 8,
        max_waiting: int = 1024,
        slowdown: float = SLOWDOWN,
    ) -> None:
        check_counts(draft_length, max_batch=max_batch, max_waiting=max_waiting)
        check_slowdown(slowdown)
        self.target = wrap(target)
        drafts_with = drafter_for(self.target, drafter)
        self._is_plain = drafts_with is None
        self._note = idle_options(draft_length, tree) if self._is_plain else None
        engine = Engine(
            self.target,
            drafter=None if drafts_with is None else Forced(drafts_with),
            draft_length=draft_length,
            tree=tree,
            rule=rules.trusted(rule),
            num_rows=max_batch,
            slowdown=slowdown,
            executor_of=executor_of,
        )
        self._worker = EngineThread(
            engine, max_waiting
        )  # whose thread knows nothing of this object
        finalize(self, self._worker.close).atexit = False

    @refuses_unknown
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
        owner: str = "",
        draft_length: DraftLength | None = None,
        priority: int = 0,
        timeout: float | None = None,
    ) -> Answer:
        """Queue a request; call it from a coroutine. Options are as for `generate`.

        resume: output tokens that exist already, for instance from an engine that died.
        owner: the name of the request's owner. Stored texts and what drafters learn are shared only
        within one owner; of equal priority, the owner with the fewest running requests comes first.
        draft_length: the most guesses in a row for this request; 0 for plain decoding.
        priority: requests with a higher one get a row first.
        timeout: seconds after which the request ends with the text it has and finish_reason
        "deadline".
        """
        options = AnswerOptions(
            sampling, max_new_tokens, stop, stop_tokens, ignore_eos, logprobs, logprobs_of, owner,
            draft_length, priority, timeout,
        )  # fmt: skip
        if sampling.n != 1:
            cure = "Submit each sample as a request of its own, with a seed of its own."
            raise InputError(explain("A request has one answer.", f"n={sampling.n}", cure))
        tokens = encode(self.target, prompt)
        return self.enqueue(*make_samples(self.target, tokens, options, given=resume))

    def enqueue(self, request: Request) -> Answer:
        """Queue a `Request` that was made for this target; call it from a coroutine."""
        note = self._note
        if note is None and self._is_plain:
            note = idle_options(request.draft_length or 0, None)
        request.stats.notes += [] if note is None else [note]
        answer = Answer(request, self, self._worker.abort)
        self._worker.submit(answer)
        return answer

    @property
    def num_running(self) -> int:
        """The number of requests that have a row."""
        return self._worker.num_running

    @property
    def num_waiting(self) -> int:
        """The number of requests that have no row yet."""
        return self._worker.num_waiting

    @property
    def failure(self) -> Exception | None:
        """The exception that ended the engine, usually raised by the model; None if it works. An
        engine that has failed refuses requests."""
        return self._worker.failure

    async def close(self) -> None:
        """Abort the running requests, and wait until the thread has ended."""
        self._worker.close()
        while self._worker.thread.is_alive():  # no thread waits for it: a pass may never return
            await asyncio.sleep(CLOSE_PAUSE)

    async def __aenter__(self) -> AsyncEngine:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
