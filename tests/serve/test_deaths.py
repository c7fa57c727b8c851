"""Engines that die, and requests that fail: who goes on, and who does not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from desks import DRAFTERS, Restarts, plain, with_desk
from reciting import byte_tokenizer
from serving import PROMPT, Babbler, an_ask, run, until

import forerun as fr
from forerun.base.clock import now
from forerun.engine import engine as engine_module
from forerun.serve.admission import client_request as ticket_module
from forerun.serve.admission import engines
from forerun.serve.admission.admission import Desk
from forerun.serve.admission.errors import ApiError


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


def test_who_is_gone_does_not_move_to_another_engine() -> None:
    is_dying, was_aborted = threading.Event(), threading.Event()

    def die(ids: Sequence[int]) -> None:
        if len(ids) >= 40 and not was_aborted.is_set():
            is_dying.set()
            was_aborted.wait(30)
            raise MemoryError("no room")

    async def work(desk: Desk) -> Any:
        ticket = desk.enter(an_ask(max_new_tokens=400), request_id="a")
        await until(is_dying.is_set)
        ticket.abort()
        was_aborted.set()
        return [answer.finish_reason for answer in await ticket.results()]

    assert with_desk(work, Babbler(die)) == ["aborted"]


def test_a_deadline_between_two_engines_loses_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """The text so far is the answer, what was held back for a stop string included."""
    (tokens,) = plain(an_ask(max_new_tokens=20))
    text = byte_tokenizer().decode(tokens, skip_special_tokens=True)
    is_late = threading.Event()
    for module in (ticket_module, engine_module):
        monkeypatch.setattr(module, "now", lambda: now() + 1000 * is_late.is_set())

    def die(ids: Sequence[int]) -> None:
        if len(ids) >= len(an_ask().prompts[0]) + 20 and not is_late.is_set():
            is_late.set()
            raise MemoryError("no room")

    async def work(desk: Desk) -> None:
        stop = [text[-2:] + "and more"]
        options = {"stop": stop, "draft_length": 0}
        ask = an_ask(max_new_tokens=400, timeout=100, **options)
        ticket = desk.enter(ask, request_id="a")
        pieces = [piece async for _, piece in ticket]
        (answer,) = await ticket.results()
        assert answer.tokens == tokens
        assert answer.text == "".join(piece.text for piece in pieces) == text
        assert answer.finish_reason == pieces[-1].finish_reason == "deadline"

    with_desk(work, Babbler(die))


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


def test_nobody_ends_for_others_who_keep_killing_engines() -> None:
    """They come without a pause, and are there whenever somebody is tried."""
    killer = an_ask("STOP! now", seed=9, draft_length=0)
    options = {"max_new_tokens": 40, "draft_length": 0}
    others = [an_ask(PROMPT[i:], seed=i, **options) for i in range(3)]
    target = Babbler(Deadly(10_000, after=0, mark=killer.prompts[0]))

    async def work(desk: Desk) -> Any:
        good = [desk.enter(ask, request_id=str(i)) for i, ask in enumerate(others)]
        statuses: list[int] = []

        async def keep_killing(name: str) -> None:
            while any(ticket.request_id in desk.tickets for ticket in good):
                with pytest.raises(ApiError) as caught:
                    await desk.enter(killer, request_id=name).results()
                statuses.append(caught.value.status)

        await asyncio.gather(*map(keep_killing, "xyz"))
        assert set(statuses) == {500}
        groups = [await ticket.results() for ticket in good]
        return [[answer.tokens for answer in group] for group in groups]

    assert with_desk(work, target, max_batch=8) == [plain(ask) for ask in others]


def test_after_a_guilty_request_the_server_is_ready_again() -> None:
    """Though nobody asks for the same drafter and rule."""

    async def work(desk: Desk) -> None:
        with pytest.raises(ApiError):
            await desk.enter(an_ask(), request_id="bad").results()
        await until(lambda: desk.is_ready)

    restarts: list[int] = []
    with_desk(work, Babbler(Deadly(1000, after=0)), watcher=Restarts(restarts))
    assert restarts


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


def test_an_engine_that_cannot_be_made_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until then the server is not ready, and who asks is told to come back."""
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


@pytest.mark.parametrize("error", [fr.InputError("no fit"), MemoryError("no room")])
def test_who_starts_a_server_is_told_why_it_cannot(error: Exception) -> None:
    class Unfit(Babbler):
        def start(self, num_rows: int, capacity: int = 0) -> Any:
            raise error

    def fail(ids: Sequence[int]) -> None:
        raise error

    async def main(target: Any) -> None:
        async with Desk(target, DRAFTERS) as desk:
            with pytest.raises((fr.InputError, MemoryError, fr.GenerationError), match=str(error)):
                await desk.warm_up()

    run(main(Unfit()))
    target = Babbler()
    target.before = fail
    run(main(target))
