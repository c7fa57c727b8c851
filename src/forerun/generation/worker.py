"""The thread that runs an engine's rounds, and what other threads may ask of it."""

from __future__ import annotations

import threading
from collections import deque

from forerun.base.errors import GenerationError, InputError, explain, shown
from forerun.engine.engine import Engine
from forerun.engine.request import Request
from forerun.engine.schedule import check_room
from forerun.generation.answer import Answer
from forerun.generation.generate import piece_of


class EngineThread:
    """Runs rounds while there is something to do, and waits in between.

    max_waiting: requests beyond these are refused.
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
        """Requests that have a row."""
        return len(self._engine.running)

    @property
    def num_waiting(self) -> int:
        """Requests that have no row yet."""
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
        """Abort what is running, and let the thread end."""
        with self._lock:
            self._is_closing = True
            self._lock.notify()

    def _check_open(self) -> None:
        """Refuse a request of an engine that has failed or is closed."""
        if self.failure is not None:
            raise GenerationError(f"The engine has failed: {shown(self.failure)}.", None)
        if self._is_closing:
            cure = "Make a new AsyncEngine."
            raise InputError(explain("The engine is closed.", "a request", cure))

    def abort(self, answer: Answer) -> bool:
        """Ask the thread to end a request.  False if it has ended already, or everything ends."""
        with self._lock:
            if answer.request.finish_reason is not None or self._is_closing:
                return False
            self._aborted.append(answer)
            self._lock.notify()
            return True

    def work(self) -> None:
        """Run rounds until closed: take in and abort requests, run one round, report."""
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
            self._answers[request.number].tell(piece_of(request, gained))
        else:
            self._end(self._answers.pop(request.number), gained)

    def _end(self, answer: Answer, gained: int = 0) -> None:
        """Tell a request's owner that it has ended."""
        request, error = answer.request, None
        answer.tell(piece_of(request, gained))
        if request.error is not None:
            message = f"The request failed {request.error}"
            error = GenerationError(message, request.generation())
            error.__cause__ = request.cause
        answer.finish(error)


def _as_exception(error: BaseException) -> Exception:
    return error if isinstance(error, Exception) else RuntimeError(shown(error))
