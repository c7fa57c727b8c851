"""Prompts that wait until they fill a round, where a round that reads prompts has no drafts."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import forerun as fr
from forerun import rules
from forerun.engine.answer_options import AnswerOptions
from forerun.engine.engine import Engine
from forerun.engine.gathering import LATELY, MOST_WAITED, Gathering
from forerun.engine.plan import RoundPlan
from forerun.engine.proposal import NOTHING, Drafted
from forerun.engine.request import Request
from forerun.engine.stepwise import Decision, Setup
from forerun.generation.intake import make_request
from forerun.gpu_rounds.outcomes import NO_ANSWER, CapturedLaws
from forerun.models.table import TableModel

TABLE = TableModel.random(vocab_size=7, order=1, seed=0)
ROOM, SECONDS = 64, 0.01
PROMPT = 40


class Storing:
    """A model that stores all that it is fed."""

    name, vocab_size, max_context = "storing", TABLE.vocab_size, None

    def start(self, num_rows: int, capacity: int = 0) -> Any:
        return SimpleNamespace(lengths=[0] * num_rows)

    def release(self, state: Any, row: int) -> None:
        state.lengths[row] = 0

    def truncate(self, state: Any, row: int, length: int) -> int:
        self.release(state, row)
        return 0

    def copy_prefix(self, state: Any, source: int, row: int, length: int) -> int:
        return 0


class Steady:
    """Gives every answer one token a round, and notes the prompt tokens that each round reads."""

    def __init__(self, state: Any, *, costs_drafts: bool) -> None:
        self._state, self._costs_drafts = state, costs_drafts
        self.is_timed = True
        self.read: list[int] = []

    def execute(self, plan: RoundPlan) -> Decision:
        count = len(plan.answering)
        self.read.append(plan.load.num_read)
        laws: Any = CapturedLaws([NO_ANSWER] * count)
        return Decision(
            Drafted([NOTHING] * count), [()] * count, [1] * count, laws,
            [0.0, 0.0, SECONDS, SECONDS], is_overlapped=True, room=ROOM,
            costs_drafts=self._costs_drafts, is_timed=self.is_timed,
        )  # fmt: skip

    def commit(self, plan: RoundPlan, decision: Decision, counts: Sequence[int]) -> None:
        for span in plan.spans:
            self._state.lengths[span.row] = span.end


class Users:
    """Requests that come while one is answered all the time, whose rounds take equally long."""

    def __init__(self, *, costs_drafts: bool) -> None:
        target: Any = Storing()

        def steady(setup: Setup) -> Steady:
            self.executor = Steady(setup.state, costs_drafts=costs_drafts)
            return self.executor

        self.engine = Engine(
            target, drafter=None, draft_length=0, rule=rules.get("match"), num_rows=100,
            slowdown=4.0, executor_of=steady,
        )  # fmt: skip
        self._ask(2, 1000)
        self.pass_by(2 * round(LATELY / SECONDS))  # so that it knows what rounds take
        for _ in range(4):  # and what parts add
            self._ask(4 * ROOM, 1)
            self.pass_by(10)
        self.pass_by(2 * round(LATELY / SECONDS))
        self.executor.read.clear()

    def _ask(self, length: int, limit: int = 1) -> Request:
        options = AnswerOptions(fr.Sampling(seed=1), max_new_tokens=limit, ignore_eos=True)
        request = make_request(TABLE, [len(self.engine.running), 2] * (length // 2), options)
        self.engine.submit(request)
        return request

    def come(self, count: int, every: int) -> None:
        """One with a prompt every few rounds."""
        for _ in range(count):
            self._ask(PROMPT)
            self.pass_by(every)

    def pass_by(self, num_rounds: int) -> None:
        for _ in range(num_rounds):
            self.engine.step()

    @property
    def parts(self) -> list[int]:
        return [count for count in self.executor.read if count]


def test_prompts_that_keep_coming_are_read_in_full_rounds() -> None:
    """Two of three rounds go undisturbed.  Where nothing is lost, each prompt is read at once."""
    users = Users(costs_drafts=True)
    users.come(60, every=2)
    late = users.parts[-20:]
    assert sum(count == ROOM for count in late) >= 18
    at_once = Users(costs_drafts=False)
    at_once.come(60, every=2)
    assert max(at_once.parts) <= PROMPT
    assert len(users.parts) < 0.75 * len(at_once.parts)


def test_nobody_waits_for_those_who_hardly_ever_come() -> None:
    users = Users(costs_drafts=True)
    users.come(5, every=50)
    assert users.executor.read[0] == users.executor.read[50] == PROMPT


def test_a_prompt_waits_so_long_at_most() -> None:
    """The others stop coming."""
    users = Users(costs_drafts=True)
    users.come(60, every=2)
    last = users._ask(4)
    users.pass_by(round(MOST_WAITED / SECONDS) + 2)
    assert last.finish_reason == "length"


def test_time_passes_in_rounds_that_tell_nothing_of_the_usual_ones() -> None:
    users = Users(costs_drafts=True)
    users.come(60, every=2)
    users.executor.is_timed = False
    last = users._ask(4)
    users.pass_by(round(MOST_WAITED / SECONDS) + 2)
    assert last.finish_reason == "length"


def test_who_came_before_a_time_without_requests_is_not_expected() -> None:
    users = Users(costs_drafts=True)
    users.come(60, every=2)
    for request in list(users.engine.running):
        users.engine.abort(request.number)
    users._ask(2, 1000)
    users.pass_by(2)
    users.executor.read.clear()
    users._ask(PROMPT)
    users.pass_by(1)
    assert users.executor.read == [PROMPT]


def test_what_has_come_lately_is_expected_to_come_again() -> None:
    gathering = Gathering()
    assert not gathering.waits(10, 20)  # nothing has come
    gathering.add(10)
    assert not gathering.waits(10, 20)  # too little
    for _ in range(100):
        gathering.add(10)
    assert gathering.waits(10, 20)
    assert not gathering.waits(20, 20)
    gathering.pass_by(LATELY)
    assert gathering.waits(10, 20)
    gathering.pass_by(MOST_WAITED / 2)  # by when it was long ago
    assert not gathering.waits(10, 20)
