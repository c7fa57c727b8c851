"""Workers that die: none of their requests is lost or answered twice, and the killer is named."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, ClassVar

import pytest

from forerun.base.errors import InputError
from forerun.batch import worker_pool
from forerun.batch.answerer import Answered, WorkerSettings
from forerun.batch.lines import BatchRequest, Begun
from forerun.batch.worker_pool import WorkerPool, WorkersDyingError, share_of_cores

SETTINGS = WorkerSettings(max_batch=3)


class FakeWorker:
    """Answers when it has what it can hold; a request whose prompt is "kill" ends it."""

    started: ClassVar[list[FakeWorker]] = []
    is_refusing = False
    dies_at_start = False

    def __init__(
        self, place: int, settings: WorkerSettings, threads: int, events: SimpleQueue[Any]
    ):
        self.place, self.events = place, events
        self.is_ready = self.is_alone = self.is_dead = False
        self.requests: dict[int, BatchRequest] = {}
        self.most_held = 0
        self.started.append(self)
        if self.dies_at_start:
            events.put((self, None))
        elif self.is_refusing:
            events.put((self, {"refused": "No such model."}))
        else:
            events.put((self, {"ready": f"fp{place}"}))

    def send(self, request: BatchRequest) -> None:
        self.requests[request.index] = request
        self.most_held = max(self.most_held, len(self.requests))
        if self.is_dead:
            return
        if request.body["prompt"] == "kill":
            self.is_dead = True
            self.events.put((self, None))
        else:
            line = {"text": f"answer {request.index}"}
            answer = {"index": request.index, "line": line, "counts": {}}
            self.events.put((self, {"answer": answer}))

    def stop(self) -> None:
        begun = {} if self.is_dead else {str(index): [[7]] for index in self.requests}
        self.events.put((self, None if self.is_dead else {"begun": begun}))

    def end(self) -> int:
        return 0

    def status(self) -> int:
        return -9


@pytest.fixture(autouse=True)
def _fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_pool, "Worker", FakeWorker)
    monkeypatch.setattr(FakeWorker, "started", [])


def requests(count: int, killers: tuple[int, ...] = ()) -> list[BatchRequest]:
    prompts = ["kill" if i in killers else "hello" for i in range(count)]
    return [BatchRequest(i, i + 1, f"c{i}", None, {"prompt": p}) for i, p in enumerate(prompts)]


def answers(
    todo: list[BatchRequest], num_workers: int = 2, on_ready: Callable[[str], None] = lambda _: None
) -> list[Answered]:
    return list(WorkerPool(iter(todo), SETTINGS, num_workers, on_ready, lambda _: None))


def test_ctrl_c_keeps_what_the_workers_have_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_pool, "STOP_SECONDS", 0.2)  # for those that say nothing
    kept: list[dict[int, Begun]] = []

    def interrupted(fingerprint: str) -> None:
        if fingerprint == "fp1":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(WorkerPool(iter(requests(50)), SETTINGS, 2, interrupted, kept.append))
    assert kept == [{index: [[7]] for index in range(6)}]  # of the worker that was ready


def test_every_request_is_answered_once_and_no_worker_holds_too_many() -> None:
    ready: list[str] = []
    done = answers(requests(50), on_ready=ready.append)
    assert sorted(answer.index for answer in done) == list(range(50))
    assert sorted(ready) == ["fp0", "fp1"]
    assert max(worker.most_held for worker in FakeWorker.started) == 6


@pytest.mark.parametrize("killers", [(0,), (25,), (49,), (3, 4, 30)])
def test_the_request_that_kills_is_told_and_the_others_are_answered(
    killers: tuple[int, ...],
) -> None:
    done = answers(requests(50, killers))
    assert sorted(answer.index for answer in done) == list(range(50))
    failures = [answer for answer in done if "error" in answer.line]
    assert tuple(sorted(answer.index for answer in failures)) == killers
    assert {answer.line["error"]["code"] for answer in failures} == {"worker_died"}
    for answer in failures:
        assert f"Line {answer.index + 1} ended its worker" in answer.line["error"]["message"]


def test_workers_that_die_whatever_they_get_end_the_run() -> None:
    with pytest.raises(WorkersDyingError, match="exit status -9"):
        answers(requests(50, tuple(range(50))))


def test_workers_that_never_get_ready_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeWorker, "dies_at_start", True)
    with pytest.raises(WorkersDyingError):
        answers(requests(5))


def test_what_a_worker_refuses_is_told_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeWorker, "is_refusing", True)
    with pytest.raises(InputError, match=r"No such model\."):
        answers(requests(5))


def test_a_fingerprint_that_is_refused_ends_the_run_before_an_answer() -> None:
    def refuse(fingerprint: str) -> None:
        if fingerprint == "fp1":
            raise InputError("another one")

    with pytest.raises(InputError, match="another one"):
        answers(requests(50), on_ready=refuse)


def test_cores_are_divided() -> None:
    assert [share_of_cores(8, workers) for workers in (1, 2, 3, 8, 20)] == [8, 4, 2, 1, 1]
