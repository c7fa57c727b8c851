"""Rows that share room which runs out: who waits, who goes back to the queue, who is refused.

Every text is the one that is generated alone, whenever its request had to leave its row.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from drafting import noisy_copy
from tiny_models import Architecture

import forerun as fr
from forerun import rules
from forerun.drafters import Model, Suffix
from forerun.engine.answer_options import AnswerOptions
from forerun.engine.engine import Engine
from forerun.engine.request import Request, Status
from forerun.engine.seats import WORTH_TAKING
from forerun.generation.intake import make_request
from forerun.gpu_rounds.choosing import executor_of
from forerun.models.pages import RowPages

MODEL = Architecture("llama", "crop", {"max_position_embeddings": 512}).build()
TARGET = fr.wrap(MODEL)
SIZE, DRAFTED = 8, 4
DRAFTERS: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "suffix": Suffix,
    "model": lambda: Model(noisy_copy(MODEL, 0.1)),
}


@pytest.fixture(autouse=True)
def first_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests enter with room for two tokens."""
    monkeypatch.setattr("forerun.engine.seats.FIRST", 2)


@dataclass(eq=False)
class Page:
    num_holders: int = 1


class FewPages(RowPages[Page]):
    """Counts that run out."""

    def __init__(self, room: Cramped, num_rows: int) -> None:
        super().__init__(num_rows, SIZE)
        self._room = room

    def _new_page(self) -> Page:
        self._room.num_free -= 1
        return Page()

    def _copy(self, page: Page, to: Page) -> None: ...

    def _free(self, page: Page) -> None:
        self._room.num_free += 1

    def _note(self, row: int, first: int) -> None: ...


class Cramped:
    """A model with few pages, which refuses to score past those of a row."""

    def __init__(self, num_pages: int) -> None:
        self.inner: Any = TARGET
        self.name, self.vocab_size = TARGET.name, TARGET.vocab_size
        self.max_context = TARGET.max_context
        self.num_pages = self.num_free = num_pages
        self._resting: dict[Any, Any] = {}  # by the pages of a state and a row

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def start(self, num_rows: int, capacity: int = 0) -> Any:
        state = self.inner.start(num_rows, capacity)
        state.pages = FewPages(self, num_rows)
        return state

    def score(self, state: Any, rows: Any, tokens: Any, *more: Any) -> Any:
        for row, fed in zip(rows, tokens, strict=True):
            begin, end = state.lengths[row], state.lengths[row] + len(fed)
            assert not state.pages.num_missing(row, begin, end)
            assert (state.pages, row) not in self._resting
        return self.inner.score(state, rows, tokens, *more)

    def commit(self, *args: Any) -> None:
        self.inner.commit(*args)

    def release(self, state: Any, row: int) -> None:
        self._resting.pop((state.pages, row), None)
        state.pages.cut(row, 0)
        self.inner.release(state, row)

    def copy_prefix(self, state: Any, source: int, row: int, length: int) -> int:
        self._resting.pop((state.pages, row), None)
        state.pages.share(state.pages.of_row(source, length), row)
        return int(self.inner.copy_prefix(state, source, row, length))

    def truncate(self, state: Any, row: int, length: int) -> int:
        self._resting.pop((state.pages, row), None)
        state.pages.cut(row, length)
        return int(self.inner.truncate(state, row, length))

    def longest(self, state: Any) -> int:
        return self.num_pages * SIZE - DRAFTED

    def reserve(self, state: Any, row: int, length: int) -> bool:
        self._resting.pop((state.pages, row), None)
        begin, end = state.lengths[row], length + DRAFTED
        while state.pages.num_missing(row, begin, end) > self.num_free:
            if not self._resting:
                return False
            key = next(iter(self._resting))
            self.release(self._resting[key], key[1])
        state.pages.reserve(row, begin, end)
        return True

    def rest(self, state: Any, row: int) -> None:
        self._resting[state.pages, row] = state


def engine_of(target: Any, drafter: Any = None, num_rows: int = 4) -> Engine:
    return Engine(
        target, executor_of=executor_of, drafter=drafter, num_rows=num_rows,
        draft_length=DRAFTED - 1, rule=rules.get("match"),
    )  # fmt: skip


def request_of(prompt: list[int], seed: int = 0, count: int = 20, **options: Any) -> Request:
    sampling = fr.Sampling(temperature=0.8, seed=seed)
    asked = AnswerOptions(sampling, max_new_tokens=count, ignore_eos=True, **options)
    return make_request(TARGET, prompt, asked)


def alone(request: Request) -> list[int]:
    out: fr.Generation = fr.generate(
        TARGET, request.prompt, drafter=None, sampling=request.sampling,
        max_new_tokens=request.limit, ignore_eos=True,
    )  # fmt: skip
    return out.tokens


def prompt_of(number: int, length: int) -> list[int]:
    generator = random.Random(number)
    return [generator.randrange(TARGET.vocab_size) for _ in range(length)]


def finish(engine: Engine) -> None:
    while engine.busy:
        engine.step()


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name == "suffix" else ())
        for name in DRAFTERS  # it has no pages of its own
    ],
)
def test_texts_are_those_alone_where_pages_run_out(name: str) -> None:
    """Some prompts begin alike.  The oldest is never sent back; in the end all pages are free or
    those of texts that rest."""
    target = Cramped(10)
    engine = engine_of(target, DRAFTERS[name]())
    common = prompt_of(9, 20)
    requests = [
        request_of(common[: 5 * (number % 2) * 4] + prompt_of(number, 2 + number), seed=number)
        for number in range(6)
    ]
    for request in requests:
        engine.submit(request)
    finish(engine)
    assert [request.output for request in requests] == [alone(request) for request in requests]
    assert requests[0].stats.preemptions == 0 < sum(one.stats.preemptions for one in requests)
    state: Any = engine._state
    for row in range(4):
        target.release(state, row)
    assert target.num_free == 10


def test_the_youngest_of_the_least_priority_goes_back_and_comes_first() -> None:
    target = Cramped(6)  # for three short texts
    engine = engine_of(target)
    first, urgent, late = (
        request_of(prompt_of(number, 3), number, priority=number == 1) for number in range(3)
    )
    waiting = request_of(prompt_of(5, 3), 5, 4)
    for request in (first, urgent, late):
        engine.submit(request)
    while engine.busy and not late.stats.preemptions:
        engine.step()
        if late.stats.rounds == 1:
            engine.submit(waiting)
    assert late.status is Status.WAITING
    assert late.num_output > 0
    assert {one.number for one in engine.running} == {first.number, urgent.number}
    finish(engine)
    assert urgent.stats.preemptions == 0 < late.stats.preemptions
    requests = (first, urgent, late, waiting)
    assert [request.output for request in requests] == [alone(request) for request in requests]


def test_a_text_that_rests_makes_room() -> None:
    """And is taken over while nobody needs its room."""
    target = Cramped(6)
    engine = engine_of(target, num_rows=2)
    text = prompt_of(1, WORTH_TAKING + 4)
    first = request_of(text, 1, 4)
    engine.submit(first)
    finish(engine)
    assert target.num_free < 6
    again = request_of([*text, 3], 2, 4)
    engine.submit(again)
    finish(engine)
    assert again.stats.num_reused == len(text)
    other = request_of(prompt_of(2, 30), 3, 4)
    engine.submit(other)
    finish(engine)
    assert other.output == alone(other)
    assert other.stats.preemptions == 0


def test_a_prompt_that_never_fits_is_refused_and_a_long_answer_ends_where_room_does() -> None:
    target = Cramped(4)
    engine = engine_of(target)
    with pytest.raises(fr.UnsupportedError, match=r"33 tokens, where 24 fit.*--gpu-memory"):
        engine.submit(request_of(prompt_of(1, 33)))
    long = request_of(prompt_of(1, 20), count=50)
    engine.submit(long)
    finish(engine)
    assert long.num_output == 5
    assert long.generation().finish_reason == "context"
    assert long.output == alone(long)


def test_a_request_waits_for_the_room_of_another_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for ever: after a while it fails, and says why."""
    target = Cramped(4)
    greedy, patient = engine_of(target), engine_of(target)
    long = request_of(prompt_of(1, 16), count=6)
    greedy.submit(long)
    greedy.step()
    short = request_of(prompt_of(2, 6), count=8)
    patient.submit(short)
    for _ in range(3):
        assert patient.step() == []
    assert short.status is Status.WAITING
    greedy.close()
    finish(patient)
    assert short.output == alone(short)
    target.num_free = 1
    hopeless = request_of(prompt_of(2, 12), count=8)
    patient.submit(hopeless)
    monkeypatch.setattr("forerun.engine.engine.PATIENCE", 0.02)
    target._resting.clear()
    finish(patient)
    assert hopeless.finish_reason == "error"
    assert "other engines had the memory" in str(hopeless.error)


def test_clients_that_leave_give_their_room_back() -> None:
    """While their prompt is read, too; a prompt that never fits is refused when it is sent."""
    target = Cramped(9)

    async def play() -> list[list[int]]:
        async with fr.AsyncEngine(target, drafter=None, max_batch=3) as engine:
            with pytest.raises(fr.UnsupportedError, match="never room"):
                engine.submit(prompt_of(1, 90))
            answers = [
                engine.submit(prompt_of(number, 30), sampling=fr.Sampling(seed=number),
                              max_new_tokens=20, ignore_eos=True)
                for number in range(4)
            ]  # fmt: skip
            answers[0].abort()
            await asyncio.sleep(0.01)
            answers[2].abort()
            return [(await answers[number]).tokens for number in (1, 3)]

    texts = asyncio.run(play())
    for number, text in zip((1, 3), texts, strict=True):
        expected = fr.generate(
            TARGET, prompt_of(number, 30), drafter=None, sampling=fr.Sampling(seed=number),
            max_new_tokens=20, ignore_eos=True,
        )  # fmt: skip
        assert text == expected.tokens
