"""Who is given the next row: against sorting everybody who waits, and how long it takes."""

from __future__ import annotations

import random
import weakref
from collections import Counter
from typing import Any

import pytest

from forerun.base.errors import InputError
from forerun.engine import queue as queue_module
from forerun.engine.answer_options import AnswerOptions
from forerun.engine.queue import Queue
from forerun.engine.request import Request
from forerun.generation.intake import make_request
from forerun.models import TableModel
from forerun.sampling.options import Sampling

TABLE = TableModel.random(vocab_size=7, order=1, seed=0)


def request_of(number: int, owner: str = "", priority: int = 0) -> Request:
    request = make_request(
        TABLE,
        [1],
        AnswerOptions(Sampling(seed=1), max_new_tokens=1, owner=owner, priority=priority),
    )
    request.number = number
    return request


@pytest.mark.parametrize("seed", range(20))
def test_the_order_is_that_of_sorting_everybody(seed: int) -> None:
    """Requests come, are given rows, are put back, are removed, and leave their rows."""
    generator = random.Random(seed)
    queue, waiting, seated = Queue(), dict[int, Request](), list[Request]()
    rows: Counter[str] = Counter()
    for number in range(400):
        what = generator.random()
        if what < 0.5:
            owner, priority = generator.choice("abcd"), generator.choice([0, 0, 0, 1, -2])
            waiting[number] = request_of(number, owner, priority)
            queue.push(waiting[number])
        elif what < 0.6 and waiting:
            removed = generator.choice(sorted(waiting))
            assert queue.remove(removed) is waiting.pop(removed)
        elif what < 0.75 and seated:
            owner = seated.pop(generator.randrange(len(seated))).owner
            rows[owner] -= 1
            queue.row_left(owner)
        else:
            best = min(
                waiting.values(),
                key=lambda one: (-one.priority, rows[one.owner], one.number),
                default=None,
            )
            assert queue.pop() is best
            if best is not None and generator.random() < 0.3:
                queue.put_back(best)
            elif best is not None:
                del waiting[best.number]
                rows[best.owner] += 1
                seated.append(best)
        assert len(queue) == len(waiting)
        assert {one.number for one in queue} == set(waiting)


@pytest.mark.parametrize("owners", [1, 50, 5000])
def test_the_next_request_costs_the_same_however_many_wait(
    owners: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted in places that are pushed and popped, of 256 rows that are taken and left."""
    counts: Counter[str] = Counter()

    def counted(name: str) -> Any:
        real = getattr(queue_module, name)

        def call(*args: Any) -> Any:
            counts["calls"] += 1
            return real(*args)

        return call

    for name in ("heappush", "heappop"):
        monkeypatch.setattr(queue_module, name, counted(name))
    for num_waiting in (5_000, 20_000):
        queue, one = Queue(), request_of(0)
        for number in range(num_waiting):
            request = Request.__new__(Request)
            request.__dict__ |= one.__dict__ | {"number": number, "owner": str(number % owners)}
            queue.push(request)
        counts.clear()
        seated: list[Request] = []
        for _ in range(2_000):
            if len(seated) == 256:
                queue.row_left(seated.pop(0).owner)
            request_or_none = queue.pop()
            assert request_or_none is not None
            seated.append(request_or_none)
        assert counts["calls"] <= 8 * 2_000


def test_what_is_not_there_cannot_be_removed() -> None:
    queue = Queue()
    with pytest.raises(InputError, match=r"No request of that number.*7"):
        queue.remove(7)
    assert queue.pop() is None


def test_a_queue_that_is_never_empty_forgets_places_that_have_changed() -> None:
    queue: Queue[Request] = Queue()
    one, seated = request_of(0), list[Request]()
    for number in range(5_000):
        request = Request.__new__(Request)
        request.__dict__ |= one.__dict__ | {"number": number, "owner": str(number % 3)}
        queue.push(request)
        if number > 20 and (popped := queue.pop()) is not None:
            seated.append(popped)
        if len(seated) > 8:
            queue.row_left(seated.pop(0).owner)
    assert len(queue) == 21
    assert len(queue._places) <= queue_module.MOST_PLACES + 4 * (len(queue) + 1)


def test_requests_that_are_removed_are_not_kept() -> None:
    """Nor those whose turn never comes, because others are always before them."""
    queue = Queue[Request]()
    queue.push(request_of(0, priority=1))
    last = request_of(1)
    queue.push(last)
    queue.remove(1)
    gone = weakref.ref(last)
    del last
    assert gone() is None
    assert queue.pop() is not None
    assert queue.pop() is None
