"""Worker processes on this machine, which answer the requests of a batch job in any order.

A worker that dies (out of memory, say) is replaced. The requests it had are then tried one at a
time, each alone in a worker. If a request kills that worker too, it is reported as failed; the
others continue.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict
from queue import Empty, SimpleQueue
from typing import Any

from forerun.base.clock import now
from forerun.base.errors import ForerunError, InputError, explain
from forerun.batch.answerer import AnswerCounts, Answered, WorkerSettings
from forerun.batch.lines import BatchRequest, Begun, failed

AHEAD = 2  # requests on their way to a worker, as a multiple of its rows
STOP_SECONDS = 5.0  # for the workers to say what they have begun
MOST_DEATHS = 5  # workers that may die in a row without an answer in between

Event = tuple["Worker", dict[str, Any] | None]  # a message; None when the worker has ended


class WorkersDyingError(ForerunError, RuntimeError):
    """Workers keep dying, whichever requests they get."""


class Worker:
    """A worker process; its messages arrive as events."""

    def __init__(
        self, place: int, settings: WorkerSettings, threads: int, events: SimpleQueue[Event]
    ):
        self.place = place
        self.is_ready = False
        self.is_alone = False  # with one request, which may have killed its predecessor
        self.requests: dict[int, BatchRequest] = {}  # those it has, by index
        self._process = subprocess.Popen(
            [sys.executable, "-m", "forerun.batch.batch_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
            env=_environment(threads),
            start_new_session=True,  # Ctrl-C is for us; a worker ends with its input
        )
        threading.Thread(target=self._listen, args=(events,), daemon=True).start()
        self._write({"settings": asdict(settings), "place": place})

    def send(self, request: BatchRequest) -> None:
        self.requests[request.index] = request
        self._write(asdict(request))

    def stop(self) -> None:
        """Ask the worker for the tokens of its unfinished answers."""
        self._write({"stop": True})

    def end(self) -> int:
        """End the process if it still runs; returns its exit status."""
        self._process.kill()
        return self._process.wait()

    def status(self) -> int:
        return self._process.wait()

    def _write(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it is dead, which the end of its output tells

    def _listen(self, events: SimpleQueue[Event]) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.endswith("\n"):  # else it died while writing
                events.put((self, json.loads(line)))
        events.put((self, None))


class WorkerPool:
    """Iterates over the answers to `requests`, in the order in which they are finished.

    on_ready: called with the fingerprint of each worker; it may raise.
    on_stop: called after Ctrl-C with the tokens of unfinished answers.
    """

    def __init__(
        self,
        requests: Iterator[BatchRequest],
        settings: WorkerSettings,
        num_workers: int,
        on_ready: Callable[[str], None],
        on_stop: Callable[[dict[int, Begun]], None],
    ) -> None:
        self._requests = requests
        self._settings = settings
        self._threads = share_of_cores(num_cores(), num_workers)
        self._on_ready, self._on_stop = on_ready, on_stop
        self._events: SimpleQueue[Event] = SimpleQueue()
        self._suspects: deque[BatchRequest] = deque()
        self._is_exhausted = False
        self._num_deaths = 0
        self._workers = [self._started(place) for place in range(num_workers)]

    def __iter__(self) -> Iterator[Answered]:
        try:
            while self._fill():
                worker, message = self._events.get()
                if message is None:
                    yield from self._replace(worker)
                elif "refused" in message:
                    raise InputError(message["refused"])
                elif "ready" in message:
                    self._on_ready(message["ready"])
                    worker.is_ready = True
                else:
                    answer = message["answer"]
                    del worker.requests[answer["index"]]
                    self._num_deaths = 0
                    yield Answered(
                        answer["index"], answer["line"], AnswerCounts(**answer["counts"])
                    )
        except KeyboardInterrupt:
            self._on_stop(self._begun())
            raise
        finally:
            for worker in self._workers:
                worker.end()

    def _begun(self) -> dict[int, Begun]:
        """The tokens of unfinished answers, from those workers that report in time."""
        waiting = [worker for worker in self._workers if worker.is_ready]
        for worker in waiting:
            worker.stop()
        begun: dict[int, Begun] = {}
        until = now() + STOP_SECONDS
        while waiting:
            try:
                worker, message = self._events.get(timeout=max(0.0, until - now()))
            except Empty:
                break
            if worker in waiting and (message is None or "begun" in message):
                waiting.remove(worker)
                told = {} if message is None else message["begun"]
                begun |= {int(index): tokens for index, tokens in told.items()}
        return begun

    def _started(self, place: int) -> Worker:
        return Worker(place, self._settings, self._threads, self._events)

    def _fill(self) -> bool:
        """Give requests to workers; returns False when all are answered."""
        for worker in self._workers:
            if not worker.is_ready:
                continue
            if not worker.requests:
                worker.is_alone = bool(self._suspects)
                if self._suspects:
                    worker.send(self._suspects.popleft())
            while not worker.is_alone and len(worker.requests) < AHEAD * self._settings.max_batch:
                request = self._next()
                if request is None:
                    break
                worker.send(request)
        is_busy = any(worker.requests for worker in self._workers)
        return is_busy or bool(self._suspects) or not self._is_exhausted

    def _next(self) -> BatchRequest | None:
        request = None if self._is_exhausted else next(self._requests, None)
        self._is_exhausted |= request is None
        return request

    def _replace(self, worker: Worker) -> Iterator[Answered]:
        """Replace a worker that died. Its requests become suspects; a request that was alone in it
        is reported as failed."""
        status = worker.status()
        self._num_deaths += 1
        if not worker.is_ready or self._num_deaths >= MOST_DEATHS:
            wrong = "Workers die before they answer anything."
            cure = "Look above for the reason, give them more memory or --max-batch 1, and resume."
            raise WorkersDyingError(explain(wrong, f"exit status {status}", cure))
        self._workers[worker.place] = self._started(worker.place)
        if not worker.is_alone:
            self._suspects.extend(worker.requests.values())
            return
        for request in worker.requests.values():
            message = (
                f"Line {request.number} ended its worker process, alone and with exit status "
                f"{status}; -9 mostly means that memory ran out."
            )
            yield Answered(request.index, failed(request, "worker_died", message))


def share_of_cores(cores: int, num_workers: int) -> int:
    """The number of threads for each worker."""
    return max(1, cores // num_workers)


def num_cores() -> int:
    """The number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _environment(threads: int) -> dict[str, str]:
    """A worker's environment: its share of the cores, and threads that do not spin while waiting,
    which would starve the other workers."""
    shares = {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE"}
    return {**shares, **os.environ, "TOKENIZERS_PARALLELISM": "false"}
