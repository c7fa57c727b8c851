"""One budget of rows over all engines: never exceeded, handed out in turn, never lost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from desks import DRAFTERS, plain, with_desk
from serving import PROMPT, Babbler, an_ask, gated, run, until

from forerun.serve.admission.admission import Desk
from forerun.serve.admission.ask import Speculation
from forerun.serve.admission.engines import Pair
from forerun.serve.admission.row_budget import RowBudget

A, B = ("a", "match"), ("b", "match")


def test_engines_share_the_rows() -> None:
    """Six pairs, two choices for each; texts are those of `generate`."""
    asks = [
        an_ask(PROMPT[i:], seed=i, n=2, speculation=Speculation(drafter=drafter, rule="match"))
        for i, drafter in enumerate([*DRAFTERS] * 2)
    ]
    rows: list[int] = []

    async def work(desk: Desk) -> Any:
        desk.target.before = lambda ids: rows.append(desk.num_rows)  # type: ignore[attr-defined]
        tickets = [desk.enter(ask, request_id=str(i)) for i, ask in enumerate(asks)]
        groups = await asyncio.gather(*(ticket.results() for ticket in tickets))
        return [[answer.tokens for answer in group] for group in groups]

    assert with_desk(work, Babbler(lambda ids: None), max_batch=3) == [plain(ask) for ask in asks]
    assert 1 < max(rows) <= 3


async def settle() -> None:
    """Let every task go on until it waits."""
    for _ in range(10):
        await asyncio.sleep(0)


class Line:
    """Choices that wait for rows, and keep them until told otherwise."""

    def __init__(self, num_rows: int) -> None:
        self.budget = RowBudget(num_rows)
        self.entered: list[str] = []
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._ends: dict[str, asyncio.Event] = {}

    def come(
        self,
        name: str,
        pair: Pair = A,
        owner: str = "",
        priority: int = 0,
        seconds: float | None = None,
    ) -> None:
        end = self._ends[name] = asyncio.Event()

        async def stay() -> None:
            async with self.budget.row(pair, owner, priority, seconds):
                self.entered.append(name)
                await end.wait()

        self._tasks[name] = asyncio.create_task(stay())

    async def go(self, *names: str) -> None:
        for name in names:
            self._ends[name].set()
        await settle()

    def cancel(self, name: str) -> None:
        self._tasks[name].cancel()

    async def give_up(self, name: str) -> None:
        self.cancel(name)
        await settle()

    def failure(self, name: str) -> BaseException | None:
        return self._tasks[name].exception()


def test_one_engine_has_a_few_choices_in_its_own_queue() -> None:
    async def main() -> None:
        line = Line(8)
        for number in range(10):
            line.come(f"a{number}")
        line.come("b", B)
        line.come("a10")
        await settle()
        assert len(line.entered) == 8 + 2
        await line.go("a0", "a1")  # eight are left: no row is free for another engine
        assert len(line.entered) == 10
        await line.go("a2")
        assert line.entered[10:] == ["b"]

    run(main())


def test_nobody_overtakes_one_who_waits_for_another_engine() -> None:
    async def main() -> None:
        line = Line(1)
        line.come("first")
        await settle()
        line.come("second", B)
        line.come("third")
        await settle()
        assert line.entered == ["first"]
        await line.go("first")
        assert line.entered == ["first", "second"]
        await line.go("second")
        assert line.entered == ["first", "second", "third"]

    run(main())


def test_priority_then_the_owner_with_the_fewest_rows_comes_first() -> None:
    async def main() -> None:
        line = Line(2)
        line.come("x0", A, "x")
        line.come("y0", B, "y")
        await settle()
        line.come("x1", A, "x")
        line.come("z1", A, "z")
        line.come("x2", A, "x", priority=1)
        await line.go("y0")
        assert line.entered[2:] == ["x2", "z1"]

    run(main())


@pytest.mark.parametrize("is_waiting", [True, False])
def test_who_gives_up_keeps_no_row(is_waiting: bool) -> None:
    async def main() -> None:
        line = Line(1)
        line.come("first")
        await settle()
        line.come("second", B)
        line.come("third")
        await settle()
        await line.give_up("second" if is_waiting else "first")
        await line.go("first")
        assert line.entered == ["first", "third" if is_waiting else "second"]

    run(main())


def test_a_row_is_not_given_to_one_who_gave_up_in_the_same_step() -> None:
    async def main() -> None:
        line = Line(1)
        line.come("first")
        await settle()
        for name in ("gone", "next"):
            line.come(name, B)
        await settle()
        ending = asyncio.create_task(line.go("first"))  # runs before the cancelled one does
        await asyncio.sleep(0)
        line.cancel("gone")
        await ending
        assert line.entered == ["first", "next"]
        await line.go("next")
        assert [str(line.failure(name)) for name in ("first", "next")] == ["None", "None"]
        line.come("last", A)
        await settle()
        assert line.entered[-1] == "last"

    run(main())


def test_a_choice_whose_time_is_up_goes_on_without_a_row() -> None:
    async def main() -> None:
        line = Line(1)
        line.come("first")
        await settle()
        line.come("late", B, seconds=0.01)
        line.come("next", B)
        await until(lambda: "late" in line.entered)
        assert line.entered == ["first", "late"]
        await line.go("late")
        assert line.entered == ["first", "late"]
        await line.go("first")
        assert line.entered == ["first", "late", "next"]

    run(main())


def test_a_deadline_passes_while_a_request_waits_for_another_engine() -> None:
    target, gate = gated()

    async def work(desk: Desk) -> Any:
        first = desk.enter(an_ask(), request_id="a")
        await until(lambda: desk.num_running == 1)
        other = Speculation(drafter="none")
        late = desk.enter(an_ask(timeout=0.05, speculation=other), request_id="b")
        pieces = [piece async for _, piece in late]
        (answer,) = await late.results()
        assert pieces[-1].finish_reason == answer.finish_reason == "deadline"
        assert not answer.tokens
        assert desk.num_running == 1
        gate.set()
        return [answer.tokens for answer in await first.results()]

    assert with_desk(work, target, max_batch=1) == plain(an_ask())
