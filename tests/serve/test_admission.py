"""The desk: who gets in, what comes out, and what outlives an engine."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from desks import DRAFTERS, plain, with_desk
from serving import Babbler, an_ask, gated, until

from forerun.engine.results import Piece, Stats
from forerun.serve.admission import admission as desk_module
from forerun.serve.admission import engines as engines_module
from forerun.serve.admission.admission import Desk
from forerun.serve.admission.ask import Speculation
from forerun.serve.admission.errors import ApiError
from forerun.serve.watching.roles import Watcher


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
    target, gate = gated()

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

    with_desk(work, target, max_batch=1, max_queue=2)


class Small(Babbler):
    """A model whose memory has room for 40 tokens."""

    def longest(self, state: Any) -> int:
        return 40

    def reserve(self, state: Any, row: int, length: int) -> bool:
        return length <= 40

    def rest(self, state: Any, row: int) -> None: ...


def test_a_prompt_that_never_fits_the_memory_is_the_clients_mistake() -> None:
    async def work(desk: Desk) -> None:
        with pytest.raises(ApiError, match="tokens, where 39 fit") as caught:
            await desk.enter(an_ask("long " * 10), request_id="long").results()
        assert caught.value.status == 400
        answers = await desk.enter(an_ask(), request_id="short").results()
        assert answers[0].finish_reason in ("length", "stop", "context")

    with_desk(work, Small())


def test_nobody_can_keep_other_owners_out() -> None:
    """One takes all places; another still gets an even share of them, and no more."""
    target, gate = gated()

    async def work(desk: Desk) -> None:
        tickets = [desk.enter(an_ask(n=6), "greedy", request_id="a")]
        desk.check_room()  # before the owner is known
        tickets.append(desk.enter(an_ask(n=3), "late", request_id="b"))
        for owner in ("greedy", "late"):
            with pytest.raises(ApiError) as caught:
                desk.enter(an_ask(), owner, request_id="c")
            assert caught.value.code == "queue_full"
        gate.set()
        await asyncio.gather(*(ticket.results() for ticket in tickets))
        await desk.enter(an_ask(n=6), "late", request_id="d").results()

    with_desk(work, target, max_batch=2, max_queue=4)


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


def test_what_an_engine_would_refuse_does_not_get_in() -> None:
    async def work(desk: Desk) -> None:
        with pytest.raises(ApiError, match="no room in the context"):
            desk.enter(an_ask("the dog " * 400), request_id="a")

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


def test_a_drain_waits_for_no_pass_that_does_not_return(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desk_module, "ABORT_SECONDS", 0.05)
    target, gate = gated()

    async def work(desk: Desk) -> None:
        ticket = desk.enter(an_ask(), request_id="a")
        await until(lambda: desk.num_running == 1)
        try:
            await asyncio.wait_for(desk.drain(0), 30)
            assert desk.tickets
        finally:
            gate.set()
        with pytest.raises(ApiError, match="shutting down"):
            await ticket.results()

    with_desk(work, target)


def test_closing_waits_for_no_pass_that_does_not_return(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(desk_module, "ABORT_SECONDS", 0.05)
    monkeypatch.setattr(engines_module, "CLOSE_SECONDS", 0.05)
    target, gate = gated()

    async def main() -> None:
        desk = Desk(target, DRAFTERS)
        desk.enter(an_ask(), request_id="a")
        await until(lambda: desk.num_running == 1)
        await asyncio.wait_for(desk.close(), 30)

    try:
        asyncio.run(main())  # which waits for threads of the loop's executor, if any
        assert not gate.is_set()
        assert "1 engines are in a pass that has not returned for 0.05 seconds" in caplog.text
    finally:
        gate.set()


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
            assert desk.num_rows == 0
            seen.append(len(desk._engines))
        return seen

    assert with_desk(work, max_batch=2) == [1, 2, 3, 4, 4, 4]


def test_the_watcher_is_told_when_a_row_is_given() -> None:
    """Which is before the first pass; who waits has not started."""
    target, gate = gated()
    log: list[str] = []

    class Log(Watcher):
        def started(self, request_id: str) -> None:
            log.append(request_id)

        def piece(self, request_id: str, choice: int, piece: Piece, stats: Stats) -> None:
            log.append("piece")

    async def work(desk: Desk) -> None:
        tickets = [desk.enter(an_ask(), request_id=name) for name in "ab"]
        try:
            await until(lambda: bool(log))
            assert log == ["a"]
            assert desk.num_rows == desk.num_running == 1
        finally:
            gate.set()
        await asyncio.gather(*(ticket.results() for ticket in tickets))
        assert log.count("a") == log.count("b") == 1
        assert log.index("b") > log.index("piece")

    with_desk(work, target, max_batch=1, watcher=Log())
