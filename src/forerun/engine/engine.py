"""The engine: takes requests, answers them round by round, and lets them go.

    requests -> plan (who, which tokens, how far to draft)
             -> execute (draft, score, decide) -> commit (text, stops)

One prompt, many prompts and a server use the same loop. Requests enter free rows before a round and
leave them after it, and each can be aborted alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import pairwise
from time import sleep

from forerun.base.clock import compiled, now, working
from forerun.base.errors import UnsupportedError, ends_process, explain, shown
from forerun.drafters.base import Drafter
from forerun.engine.drafting import Drafting
from forerun.engine.plan import RoundPlan
from forerun.engine.request import Request
from forerun.engine.schedule import Schedule
from forerun.engine.seats import Seats
from forerun.engine.steering.draft_planning import DraftPlanner
from forerun.engine.stepwise import ChooseExecutor, Decision, Setup, step_by_step
from forerun.models.base import Bounded, LanguageModel
from forerun.rules.base import Rule
from forerun.rules.types import DraftLength
from forerun.trees.tree import ROOT, Tree

PAUSE, PATIENCE = 0.005, 60.0
"""Seconds between checks whether other engines have freed memory, and seconds after which to give
up."""


class Engine:
    """The rows of one target and one drafter, and the queue of requests waiting for a row.

    num_rows: how many requests share a pass at most.
    capacity: tokens of the longest text, if known; storage is then allocated once.
    slowdown: a round that also reads prompts may take this many times as long as usual. None reads
    prompts in the longest parts, for callers that wait for no single token.
    max_waiting: more requests than these are refused with `EngineFullError`.
    executor_of: chooses the executor of rounds (`gpu_rounds/choosing.py`).
    """

    def __init__(
        self,
        target: LanguageModel,
        *,
        drafter: Drafter | None,
        draft_length: DraftLength,
        tree: int | Tree | None = None,
        rule: Rule,
        num_rows: int,
        capacity: int = 0,
        slowdown: float | None = None,
        max_waiting: int | None = None,
        executor_of: ChooseExecutor = step_by_step,
    ) -> None:
        self.target = target
        self._drafting = Drafting(drafter if draft_length else None, target, rule)
        self._planner = DraftPlanner(self._drafting, target, rule, draft_length, tree)
        num_nodes = 0 if tree is None else len(tree) if isinstance(tree, Tree) else tree
        state = target.start(num_rows, capacity and capacity + num_nodes)
        self._drafting.start(num_rows, capacity, state)
        self._seats = Seats(target, state, num_rows)
        self._schedule = Schedule(self._seats, state, slowdown=slowdown, max_waiting=max_waiting)
        self._executor = executor_of(Setup(target, state, self._drafting, rule, tree, draft_length))
        self._planner.start(num_rows, getattr(self._executor, "ladder", None))
        self._state, self._num_drafted = state, num_nodes  # past a text, at most
        if draft_length != "auto":
            self._num_drafted = max(num_nodes, draft_length)
        self._starved_since: float | None = None  # nobody runs, for want of room
        self.on_entry: Callable[[Request], None] | None = None  # called when one is given a row
        self._num_submitted = 0
        self._deadlines: list[tuple[float, int]] = []  # a heap of deadlines and numbers

    @property
    def busy(self) -> bool:
        """Whether any request waits or has a row."""
        return bool(self._schedule.waiting) or any(self._seats.occupants)

    @property
    def running(self) -> list[Request]:
        """The requests that have a row."""
        return [request for request in self._seats.occupants if request is not None]

    @property
    def num_queued(self) -> int:
        """The number of requests that have no row."""
        return len(self._schedule.waiting)

    @property
    def num_waiting(self) -> int:
        """The number of queued requests for which no row is free."""
        return len(self._schedule.waiting) - self._seats.num_free

    def submit(self, request: Request) -> int:
        """Queue a request; returns its number, by which it can be aborted."""
        self.check_room(request)
        request.number = self._num_submitted
        self._schedule.submit(request)
        self._num_submitted += 1
        if request.deadline is not None:
            heappush(self._deadlines, (request.deadline, request.number))
        return request.number

    def check_room(self, request: Request) -> None:
        """Refuse a request whose prompt can never fit into the model's memory. An answer that would
        outgrow the memory ends there."""
        if not isinstance(self.target, Bounded):
            return
        most = self.target.longest(self._state) - self._num_drafted
        if len(request.tokens) >= most:
            room = getattr(self.target, "room", "")  # how it comes about
            received = f"{len(request.tokens)} tokens, where {most - 1} fit{room and f' ({room})'}"
            cure = "Shorten it, or give the model more memory: gpu_memory, or --gpu-memory."
            raise UnsupportedError(explain("There is never room for this text.", received, cure))
        if request.limit > most - len(request.prompt):
            request.limit, request.limit_reason = most - len(request.prompt), "context"

    def abort(self, number: int, reason: str = "aborted") -> Request:
        """End one request and return it with the text it has. Its row is free in the next round."""
        for row, request in enumerate(self._seats.occupants):
            if request is not None and request.number == number:
                request.finish_reason = reason
                self._leave(row)
                return request
        request = self._schedule.waiting.remove(number)
        request.finish_reason = reason
        return request

    def close(self) -> None:
        """Abandon all unfinished requests; they keep the text generated so far."""
        self._schedule.waiting.clear()
        try:
            for row, request in enumerate(self._seats.occupants):
                if request is not None:
                    self._leave(row)
        finally:
            self._planner.close()
            self._drafting.close()

    def step(self) -> list[tuple[Request, int]]:
        """Run one round. Returns the requests that took part or ended, each with the number of
        tokens it gained."""
        ended = [(request, 0) for request in self._expire()] if self._deadlines else []
        compiled_before = compiled()
        self._schedule.make_room(self._send_back)
        self._schedule.admit(self._enter)
        plan = self._planner.complete(self._schedule.plan())
        if not plan.spans:
            return ended + self._wait_for_room()
        self._starved_since = None
        decision = self._executor.execute(plan)
        gained = self._commit(plan, decision)
        end = decision.times[-1] if decision.is_overlapped else working()
        spent = [later - sooner for sooner, later in pairwise([*decision.times, end])]
        answered = [span.request for span in plan.answering]
        compiling = compiled() - compiled_before
        load = decision.load or plan.load
        has_read = decision.load is not None and load.num_read > 0
        timed = spent if decision.is_timed and not compiling and not has_read else None
        self._planner.learn(plan, decision.drafted, decision.paths, timed)
        self._schedule.learn(
            plan, load, sum(spent), decision.is_timed, decision.room, decision.costs_drafts
        )
        for span in plan.answering:
            span.request.stats.count_seconds(*spent)
            span.request.stats.compiling += compiling
            if span.request.finish_reason is not None:
                self._leave(span.row)
        told = list(zip(answered, gained, strict=True))
        if decision.waiting:
            told = [pair for index, pair in enumerate(told) if index not in decision.waiting]
        return ended + told

    def _commit(self, plan: RoundPlan, decision: Decision) -> list[int]:
        """Append the tokens that each request keeps; returns how many each gained."""
        counts: list[int] = []
        for index, span in enumerate(plan.answering):
            if index in decision.waiting:
                counts.append(0)
                continue
            request, draft, path = span.request, decision.drafts[index], decision.paths[index]
            tokens = decision.tokens(index)
            refused = draft.goes_on(path[-1] if path else ROOT)
            reports, fault = decision.laws.settle(index, path)
            if fault is not None:
                tokens = tokens[: fault.num_sound]
            before = request.num_output
            try:
                request.commit(tokens, len(path), refused, reports)
            except BaseException as error:  # of a tokenizer: it ends this request alone
                if ends_process(error):
                    raise
                request.fail(f"at output position {request.num_output}: {shown(error)}.", error)
            count = request.num_output - before
            if fault is not None and request.finish_reason is None:
                request.fail(fault.message, fault.error)
            accepted, refused = min(len(path), count), refused and count > len(path)
            request.stats.count_round(len(draft.tokens), draft.height, accepted, refused, count)
            counts.append(count)
        self._executor.commit(plan, decision, counts)
        return counts

    def _expire(self) -> Sequence[Request]:
        """End the requests whose time is up."""
        time, late = now(), []
        while self._deadlines and self._deadlines[0][0] <= time:
            _, number = heappop(self._deadlines)
            if number in self._schedule.waiting or any(
                one.number == number for one in self.running
            ):
                late.append(number)
        return [self.abort(number, "deadline") for number in late]

    def _wait_for_room(self) -> list[tuple[Request, int]]:
        """Wait a little while other engines hold all of the memory; after a long time, give up one
        request."""
        if not self.num_queued or any(self._seats.occupants):
            return []
        self._starved_since = self._starved_since or now()
        if now() - self._starved_since < PATIENCE:
            sleep(PAUSE)
            return []
        self._starved_since, request = None, next(iter(self._schedule.waiting))
        self._schedule.waiting.remove(request.number)
        message = f"before it began: other engines had the memory for {PATIENCE:.0f} seconds."
        request.fail(message, MemoryError(message))
        return [(request, 0)]

    def _send_back(self, row: int) -> None:
        """Put a running request back into the queue, because memory is short."""
        request = self._seats.occupants[row]
        assert request is not None
        request.stats.preemptions += 1
        request.num_rounds_before = request.stats.rounds
        self._let_go(row)
        self._schedule.send_back(row)

    def _enter(self, row: int, request: Request) -> None:
        if self.on_entry is not None and not request.stats.preemptions:
            self.on_entry(request)
        self._planner.enter(row, request)

    def _leave(self, row: int) -> None:
        """Free the row of a request that has ended."""
        self._let_go(row)
        self._schedule.leave(row)

    def _let_go(self, row: int) -> None:
        """Make the drafter and the planner forget the request of a row."""
        others = {
            other: request
            for other, request in enumerate(self._seats.occupants)
            if request is not None and other != row
        }
        self._drafting.release(row, others)
        self._planner.leave(row)
