"""Turns: one at a time, never lost, and fair between owners by the time they took."""

from __future__ import annotations

import asyncio

import pytest
from serving import run

from forerun.serve.http import worker
from forerun.serve.http.worker import Turns


class Clock:
    """Stands for the module `time`: it moves when a turn says so."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def perf_counter(self) -> float:
        return self.seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(worker, "time", made)
    return made


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


class Line:
    """Owners whose turns take a second each, or as long as is said."""

    def __init__(self, clock: Clock) -> None:
        self.turns, self.clock = Turns(), clock
        self.order: list[str] = []
        self.gate = asyncio.Event()

    def come(self, owner: str, count: int = 1, seconds: float = 1.0) -> list[asyncio.Task[None]]:
        async def take() -> None:
            async with self.turns.turn(owner):
                self.order.append(owner)
                await self.gate.wait()
                self.clock.seconds += seconds

        return [asyncio.create_task(take()) for _ in range(count)]


def test_an_owner_who_comes_anew_goes_before_those_who_have_taken_much(clock: Clock) -> None:
    async def main() -> list[str]:
        line = Line(clock)
        tasks = line.come("x", 10) + line.come("y", 10)
        await settle()
        tasks += line.come("new")
        line.gate.set()
        await asyncio.gather(*tasks)
        return line.order

    order = run(main())
    assert order[0] == "x"  # was at it
    assert order.index("new") <= 2
    assert order[3:].count("x") == 9
    assert abs(order[:10].count("x") - order[:10].count("y")) <= 1


def test_turns_are_shared_by_their_seconds_and_not_by_their_number(clock: Clock) -> None:
    async def main() -> list[str]:
        line = Line(clock)
        tasks = line.come("slow", 8, seconds=10.0) + line.come("quick", 40, seconds=1.0)
        await settle()
        line.gate.set()
        await asyncio.gather(*tasks)
        return line.order

    order = run(main())
    assert 8 <= order[:13].count("quick") <= 12  # a dozen seconds' worth beside one of ten


def test_debts_are_forgotten_when_nobody_waits(clock: Clock) -> None:
    async def main() -> list[str]:
        line = Line(clock)
        line.gate.set()
        await asyncio.gather(*line.come("x", seconds=100.0))
        line.gate.clear()
        tasks = line.come("y")
        await settle()
        tasks += line.come("x") + line.come("z")
        await settle()
        line.gate.set()
        await asyncio.gather(*tasks)
        return line.order

    assert run(main()) == ["x", "y", "x", "z"]


@pytest.mark.parametrize("has_its_turn", [False, True])
def test_who_is_cancelled_keeps_no_turn(clock: Clock, has_its_turn: bool) -> None:
    async def main() -> list[str]:
        line = Line(clock)
        (first,) = line.come("first")
        await settle()
        (gone,) = line.come("gone")
        (after,) = line.come("after")
        await settle()
        if has_its_turn:
            hand_on, cancels = line.turns._hand_on, iter([gone.cancel])

            def hand_on_and_cancel() -> None:
                hand_on()
                next(cancels, bool)()

            line.turns._hand_on = hand_on_and_cancel  # type: ignore[method-assign]
        else:
            gone.cancel()
        line.gate.set()
        await asyncio.gather(first, after)
        assert gone.cancelled()
        return line.order

    assert run(main()) == ["first", "after"]
