"""The desk: who gets in, what comes out, and what outlives an engine."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from serving import PROMPT, Babbler, an_ask, run, until

import forerun as fr
from forerun.drafters import NGram, Suffix
from forerun.serve.ask import Ask, Speculation
from forerun.serve.desk import Desk
from forerun.serve.errors import ApiError
from forerun.serve.watcher import Nobody

DRAFTERS: dict[str, Any] = {"ngram": NGram(), "suffix": Suffix(), "none": None}


class Restarts(Nobody):
    """Notes when an engine is replaced."""

    def __init__(self, log: list[int]) -> None:
        self.log = log

    def engine_restarted(self) -> None:
        self.log.append(1)


def plain(ask: Ask) -> list[list[int]]:
    """What `generate` answers without a server and without a drafter."""
    outs = fr.generate(
        Babbler(),
        [list(prompt) for prompt in ask.prompts],
        sampling=fr.Sampling(temperature=0.8, seed=ask.sampling.seed, n=ask.n),
        max_new_tokens=ask.max_new_tokens,
        stop=ask.stop,
    )
    flat = [out for group in outs for out in (group if isinstance(group, list) else [group])]
    return [out.tokens for out in flat]


def with_desk(work: Any, target: Any = None, **options: Any) -> Any:
    async def main() -> Any:
        async with Desk(target or Babbler(), DRAFTERS, **options) as desk:
            result = await work(desk)
            await until(lambda: desk.num_open == desk.num_running == 0)
            assert not desk.tickets
            return result

    return run(main())


@pytest.mark.parametrize("drafter", list(DRAFTERS))
def test_choices_are_the_samples_of_generate(drafter: str) -> None:
    ask = an_ask(seed=5, n=3, speculation=Speculation(drafter=drafter))

    async def work(desk: Desk) -> Any:
        ticket = desk.enter(ask, request_id="a")
        pieces: dict[int, list[int]] = {0: [], 1: [], 2: []}
        async for choice, piece in ticket:
            pieces[choice] += piece.tokens
        answers = await ticket.results()
        assert [answer.tokens for answer in answers] == list(pieces.values())
        return list(pieces.values())

    assert with_desk(work) == plain(ask)


def test_a_full_queue_says_when_to_try_again() -> None:
    gate = threading.Event()

    async def work(desk: Desk) -> None:
        tickets = [desk.enter(an_ask(seed=i), request_id=str(i)) for i in range(3)]
        with pytest.raises(ApiError) as caught:
            desk.enter(an_ask(), request_id="late")
        assert (caught.value.status, caught.value.code) == (429, "queue_full")
        assert caught.value.retry_after is not None
        assert caught.value.retry_after >= 1
        await until(lambda: desk.num_running == 1)
        assert desk.num_waiting == 2
        gate.set()
        await asyncio.gather(*(ticket.results() for ticket in tickets))
        await desk.enter(an_ask(), request_id="late").results()

    with_desk(work, Babbler(lambda ids: _wait(gate)), max_batch=1, max_queue=2)


def test_more_choices_than_places_are_the_clients_mistake() -> None:
    async def work(desk: Desk) -> None:
        with pytest.raises(ApiError, match="4 choices; 3 fit") as caught:
            desk.enter(an_ask(n=4), request_id="a")
        assert caught.value.status == 400

    with_desk(work, max_batch=1, max_queue=2)


@pytest.mark.parametrize(
    ("speculation", "code"),
    [
        (Speculation(drafter="heads"), "unknown_drafter"),
        (Speculation(rule="typical"), "unknown_rule"),
    ],
)
def test_what_the_server_was_not_started_with_is_refused(
    speculation: Speculation, code: str
) -> None:
    async def work(desk: Desk) -> None:
        with pytest.raises(ApiError) as caught:
            desk.enter(an_ask(speculation=speculation), request_id="a")
        assert (caught.value.status, caught.value.code) == (400, code)

    with_desk(work)


def test_what_an_engine_refuses_is_told_before_anything_is_sent() -> None:
    async def work(desk: Desk) -> None:
        ticket = desk.enter(an_ask("the dog " * 400), request_id="a")
        with pytest.raises(ApiError, match="no room in the context"):
            await ticket.submitted()
        with pytest.raises(ApiError, match="no room in the context"):
            await ticket.results()

    with_desk(work)


def test_draining_finishes_what_is_here() -> None:
    ask = an_ask(max_new_tokens=60)

    async def work(desk: Desk) -> Any:
        ticket = desk.enter(ask, request_id="a")
        await anext(ticket)
        draining = asyncio.create_task(desk.drain(30))
        await asyncio.sleep(0)
        assert not desk.is_ready
        with pytest.raises(ApiError) as caught:
            desk.enter(ask, request_id="b")
        assert (caught.value.status, caught.value.code) == (503, "shutting_down")
        await draining
        return [answer.tokens for answer in await ticket.results()]

    assert with_desk(work) == plain(ask)


def test_a_drain_that_takes_too_long_ends_the_rest() -> None:
    async def work(desk: Desk) -> None:
        ticket = desk.enter(an_ask(max_new_tokens=400), request_id="a")
        await anext(ticket)
        await desk.drain(0)
        with pytest.raises(ApiError, match="shutting down"):
            await ticket.results()

    with_desk(work)


def test_aborting_frees_rows_and_places() -> None:
    async def work(desk: Desk) -> Any:
        tickets = [desk.enter(an_ask(n=2, max_new_tokens=400), request_id=str(i)) for i in range(4)]
        await anext(tickets[0])
        for ticket in tickets:
            ticket.abort()
        answers = [await ticket.results() for ticket in tickets]
        return {answer.finish_reason for group in answers for answer in group}

    assert with_desk(work, max_batch=2) == {"aborted"}


@pytest.mark.parametrize("num_steps", range(6))
def test_aborting_at_any_moment_leaves_nothing_behind(num_steps: int) -> None:
    """Before the first step of the request's tasks, too."""

    async def work(desk: Desk) -> Any:
        ticket = desk.enter(an_ask(n=2, max_new_tokens=400), request_id="a")
        for _ in range(num_steps):
            await asyncio.sleep(0)
        ticket.abort()
        return {answer.finish_reason for answer in await ticket.results()}

    assert with_desk(work) == {"aborted"}


def test_a_deadline_ends_a_request_as_it_is() -> None:
    async def work(desk: Desk) -> Any:
        ticket = desk.enter(an_ask(max_new_tokens=400, timeout=0.2), request_id="a")
        return [answer.finish_reason for answer in await ticket.results()]

    assert with_desk(work) == ["deadline"]


def test_each_pair_has_an_engine_and_idle_ones_are_closed() -> None:
    async def work(desk: Desk) -> Any:
        seen = []
        for number, (drafter, rule) in enumerate(
            (drafter, rule) for drafter in DRAFTERS for rule in ("match", "ratio")
        ):
            ask = an_ask(seed=number, speculation=Speculation(drafter=drafter, rule=rule))
            await desk.enter(ask, request_id=str(number)).results()
            await until(lambda: desk.num_running == 0)
            seen.append(desk.num_rows)
        return seen

    assert with_desk(work, max_batch=2) == [2, 4, 6, 8, 8, 8]


class Deadly:
    """Raises in a pass, as often as told, when a text is there that begins with its mark."""

    def __init__(self, times: int, after: int, mark: Sequence[int] = ()) -> None:
        self.times, self.after, self.mark = times, after, list(mark)

    def __call__(self, ids: Sequence[int]) -> None:
        is_here = list(ids[: len(self.mark)]) == self.mark and len(ids) >= self.after
        if is_here and self.times:
            self.times -= 1
            raise MemoryError("no room")


@pytest.mark.parametrize("options", [{}, {"stop": ["qqq"], "logprobs": 2}], ids=["plain", "rich"])
def test_a_dead_engine_is_replaced_and_the_texts_go_on(options: dict[str, Any]) -> None:
    """Those that ran, those that waited, pieces, log-probabilities and counts alike."""
    asks = [an_ask(PROMPT[i:], seed=i, max_new_tokens=40, **options) for i in range(5)]

    async def work(desk: Desk) -> Any:
        tickets = [desk.enter(ask, request_id=str(i)) for i, ask in enumerate(asks)]
        texts = [""] * len(tickets)

        async def read(index: int) -> Any:
            async for _, piece in tickets[index]:
                texts[index] += piece.text
            (answer,) = await tickets[index].results()
            assert answer.text == texts[index]
            return answer

        answers = await asyncio.gather(*map(read, range(len(tickets))))
        assert desk.is_ready
        return answers

    restarts: list[int] = []
    target = Babbler(Deadly(1, after=40))
    answers = with_desk(work, target, max_batch=2, watcher=Restarts(restarts))
    assert [[answer.tokens] for answer in answers] == [plain(ask) for ask in asks]
    assert restarts == [1]
    for answer in answers:
        assert len(answer.fates) == len(answer.tokens) == answer.stats.emitted
        assert answer.logprobs is None or [x.token for x in answer.logprobs] == answer.tokens


def test_who_kills_engines_ends_alone() -> None:
    """Its first pass raises, every time; those that came with it lose nothing."""
    killer, others = an_ask("STOP! now", seed=9), [an_ask(PROMPT[i:], seed=i) for i in range(3)]
    target = Babbler(Deadly(1000, after=0, mark=killer.prompts[0]))

    async def work(desk: Desk) -> Any:
        bad = desk.enter(killer, request_id="bad")
        good = [desk.enter(ask, request_id=str(i)) for i, ask in enumerate(others)]
        with pytest.raises(ApiError) as caught:
            await bad.results()
        assert caught.value.status == 500
        assert "no room" not in caught.value.message
        groups = await asyncio.gather(*(ticket.results() for ticket in good))
        return [[answer.tokens for answer in group] for group in groups]

    assert with_desk(work, target, max_batch=8) == [plain(ask) for ask in others]


def test_one_that_fails_ends_alone() -> None:
    """NaN in one text is no matter of the engine's."""
    bad_ask = an_ask("STOP! now", seed=9)
    other = an_ask(seed=3)

    class Sick(Babbler):
        def _law(self, ids: Any) -> Any:
            is_bad = ids[: len(bad_ask.prompts[0])].tolist() == bad_ask.prompts[0]
            return super()._law(ids) * (float("nan") if is_bad else 1.0)

    async def work(desk: Desk) -> Any:
        bad, good = desk.enter(bad_ask, request_id="bad"), desk.enter(other, request_id="good")
        with pytest.raises(ApiError) as caught:
            _ = [pair async for pair in bad]
        assert (caught.value.status, caught.value.code) == (500, "generation_failed")
        return [answer.tokens for answer in await good.results()]

    restarts: list[int] = []
    assert with_desk(work, Sick(), watcher=Restarts(restarts)) == plain(other)
    assert restarts == []


def _wait(gate: threading.Event) -> None:
    gate.wait(30)


def test_an_engine_that_cannot_be_made_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until then the server is not ready, and who asks is told to come back."""
    from forerun.serve import engines

    monkeypatch.setattr(engines, "FIRST_PAUSE", 0.01)

    class Lost(Babbler):
        failures = 0

        def start(self, num_rows: int, capacity: int = 0) -> Any:
            if self.failures:
                self.failures -= 1
                raise OSError("the device is lost")
            return super().start(num_rows, capacity)

    target = Lost()

    async def work(desk: Desk) -> None:
        await desk.enter(an_ask(), request_id="a").results()
        target.before, target.failures = Deadly(1, after=0), 3
        with pytest.raises(ApiError) as caught:
            await desk.enter(an_ask(), request_id="b").results()
        assert caught.value.status == 503
        assert caught.value.retry_after
        assert not desk.is_ready
        await until(lambda: desk.is_ready)
        assert target.failures == 0
        answers = await desk.enter(an_ask(), request_id="c").results()
        assert [answer.tokens for answer in answers] == plain(an_ask())

    restarts: list[int] = []
    with_desk(work, target, watcher=Restarts(restarts))
    assert restarts == [1]
