"""The desk: queues requests, hands them to engines, and keeps them alive if an engine fails.

async with Desk(target, {"ngram": NGram(), "none": None}) as desk:
    ticket = desk.enter(ask, owner, request_id="r1")
    async for choice, piece in ticket: ...
    answers = await ticket.results()
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil
from typing import Any

from forerun import rules as rules_by_name
from forerun.base.clock import now
from forerun.base.errors import ForerunError, InputError, explain
from forerun.drafters.base import Drafter
from forerun.engine.answer_options import AnswerOptions
from forerun.engine.pacing import SLOWDOWN
from forerun.engine.request import Request
from forerun.generation.intake import make_request, make_samples
from forerun.loading.load import wrap
from forerun.rules.types import DraftLength
from forerun.sampling.options import Sampling
from forerun.serve.admission.ask import Ask
from forerun.serve.admission.client_request import Ticket
from forerun.serve.admission.engine_deaths import Trial
from forerun.serve.admission.engine_roles import Pair, Pool
from forerun.serve.admission.engines import Engines
from forerun.serve.admission.errors import ApiError
from forerun.serve.admission.row_budget import RowBudget
from forerun.serve.watching.roles import Watcher

NUM_RECENT = 64
LONGEST = 60.0
"""The most seconds after which a refused client is told to try again."""


class ServiceTimes:
    """How many seconds the most recent choices (single answers) took from entry to end."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=NUM_RECENT)

    def add(self, seconds: float) -> None:
        """Record how long a choice took."""
        self._recent.append(seconds)

    def until_free(self, num_open: int, num_places: int) -> float:
        """The expected seconds until enough of the `num_open` choices have ended to free
        `num_places`.

        The choices that are open are assumed to take as long as the recent ones, and to end at even
        intervals.
        """
        if not self._recent or not num_open:
            return 1.0
        mean = sum(self._recent) / len(self._recent)
        return min(max(1.0, mean * num_places / num_open), LONGEST)


ABORT_SECONDS = 10.0
"""How long a shutdown waits for requests that it has aborted: a round or two."""
WARM_UP = AnswerOptions(Sampling(seed=0), max_new_tokens=16, ignore_eos=True)


class Desk:
    """Takes requests in and answers them, up to `max_batch` choices at once in all engines.

    drafters: by name; the first one is the default, None drafts nothing.
    rule: the default rule.
    rules: the rules that a request may name; by default all lossless ones.
    max_queue: how many choices may wait for a row. Further requests are refused, unless their owner
    has less than an even share of all places.
    engines: engines that run elsewhere; by default they are made here. With other engines, `target`
    need not be able to score anything.
    trial: decides what happens to the requests of an engine that failed.
    """

    def __init__(
        self,
        target: Any,
        drafters: Mapping[str, Drafter | None],
        *,
        rule: str = "match",
        rules: Sequence[str] | None = None,
        draft_length: DraftLength = "auto",
        max_batch: int = 8,
        max_queue: int = 64,
        slowdown: float = SLOWDOWN,
        watcher: Watcher | None = None,
        engines: Pool | None = None,
        trial: Trial | None = None,
    ) -> None:
        if not drafters:
            raise InputError(explain("There is no drafter.", "none", 'Pass {"none": None}.'))
        self.target = wrap(target) if engines is None else target
        self.drafters = dict(drafters)
        self.rule = rules_by_name.get(rule).name
        allowed = rules_by_name.names(lossless=True) if rules is None else list(rules)
        self.rules = list(dict.fromkeys([self.rule, *allowed]))
        self.draft_length = draft_length
        self.max_batch = max_batch
        self.max_queue = max_queue
        self._slowdown = slowdown
        self.watcher = Watcher() if watcher is None else watcher
        self.tickets: dict[str, Ticket] = {}  # those on their way, by request id
        self._is_draining = False
        self._open: Counter[str] = Counter()  # choices that wait or run, by owner
        self._times = ServiceTimes()
        self._trial = trial or Trial()
        self._rows = RowBudget(max_batch)
        self._engines: Pool = self._make_engines() if engines is None else engines

    def _make_engines(self) -> Engines:
        return Engines(
            self.target,
            self.drafters,
            draft_length=self.draft_length,
            max_batch=self.max_batch,
            slowdown=self._slowdown,
            on_restart=self.watcher.engine_restarted,
        )

    @property
    def is_ready(self) -> bool:
        """Whether requests are accepted and answered."""
        return self._engines.is_sound and not self._is_draining

    @property
    def is_draining(self) -> bool:
        """Whether new requests are refused because the server is shutting down."""
        return self._is_draining

    @property
    def num_running(self) -> int:
        """The number of choices that have a row."""
        return self._engines.num_running

    @property
    def num_waiting(self) -> int:
        """The number of choices that wait for a row."""
        return max(0, self.num_open - self.num_running)

    @property
    def num_rows(self) -> int:
        """The number of rows that are taken, in all engines."""
        return self.num_running

    @property
    def num_open(self) -> int:
        """The number of choices that wait or run."""
        return self._open.total()

    def enter(
        self, ask: Ask, owner: str = "", *, request_id: str, begun: Sequence[Sequence[int]] = ()
    ) -> Ticket:
        """Take in a request, from a coroutine; raises the reason if it is refused.

        begun: for each choice, tokens that exist from an earlier run under `match`; the answer
        continues after them.
        owner: the owner of the request. What engines and drafters remember of one owner's texts is
        never used for another's.
        """
        pair = self._pair(ask)
        self.check_room(ask.num_choices, owner)
        requests = self._requests(ask, owner, begun)
        entered = now()

        def choice_ended() -> None:
            self._open -= Counter({owner: 1})
            self._times.add(now() - entered)

        def ended(ticket: Ticket) -> None:
            del self.tickets[ticket.request_id]

        ticket = Ticket(
            ask,
            owner,
            request_id,
            requests,
            target=self.target,
            pair=pair,
            engines=self._engines,
            rows=self._rows,
            trial=self._trial,
            watcher=self.watcher,
            on_choice_end=choice_ended,
            on_end=ended,
        )
        self._open[owner] += ask.num_choices
        self.tickets[request_id] = ticket
        return ticket

    def check_room(self, num_choices: int = 1, owner: str = "") -> None:
        """Refuse a request if there is no place for it.

        If all places are taken, an owner may still have an even share of them, so that no owner can
        keep the others out.
        """
        if self._is_draining:
            raise _stopping()
        places = self.max_batch + self.max_queue
        if num_choices > places:
            message = f"The request has {num_choices} choices; {places} fit in at once."
            raise ApiError(message, param="n", code="too_many_choices")
        missing = self.num_open + num_choices - places
        share = max(1, places // len({*self._open, owner}))
        if missing > 0 and self._open[owner] + num_choices > share:
            seconds = ceil(self._times.until_free(self.num_open, missing))
            raise ApiError(
                f"Too many requests are waiting; try again in {seconds} s.",
                status=429,
                kind="rate_limit_error",
                code="queue_full",
                retry_after=seconds,
            )

    async def warm_up(self) -> None:
        """Answer a short request, so that the first client need not wait until the default engine
        is made and code is compiled."""
        ask = Ask([warm_up_prompt(self.target)], WARM_UP)
        try:
            await self.enter(ask, owner="warm-up", request_id="warm-up").results()
        except ApiError as error:  # whoever starts a server may see what clients may not
            raise error.__cause__ or error from None

    async def drain(self, seconds: float) -> None:
        """Refuse new requests, wait for the running ones, and end those that take longer than
        `seconds`.

        An engine whose pass never returns cannot be ended; it is not waited for.
        """
        self._is_draining = True
        await self._wait_for_tickets(seconds)
        for ticket in list(self.tickets.values()):
            ticket.abort(_stopping())
        await self._wait_for_tickets(ABORT_SECONDS)

    async def _wait_for_tickets(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while self.tickets and loop.time() < deadline:
            await asyncio.sleep(0.02)

    async def close(self) -> None:
        """End all requests and engines at once."""
        await self.drain(0)
        await self._engines.close()

    async def __aenter__(self) -> Desk:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _requests(self, ask: Ask, owner: str, begun: Sequence[Sequence[int]]) -> list[Request]:
        """Make the requests for the choices of an ask. Refuses what an engine would refuse
        later."""
        options = replace(ask.options, owner=owner)
        try:
            requests = [
                request
                for prompt in ask.prompts
                for request in make_samples(self.target, prompt, options)
            ]
            for choice, given in enumerate(begun):
                new = requests[choice]
                requests[choice] = make_request(self.target, new.prompt, new.options, given=given)
            return requests
        except ForerunError as error:
            raise ApiError(str(error)) from error

    def _pair(self, ask: Ask) -> Pair:
        drafter, rule = ask.speculation.drafter, ask.speculation.rule
        for name, value, known in (
            ("drafter", drafter, list(self.drafters)),
            ("rule", rule, self.rules),
        ):
            if value is not None and value not in known:
                message = f"There is no {name} {value!r} here. Use {' or '.join(known)}."
                raise ApiError(message, param=f"speculation.{name}", code=f"unknown_{name}")
        return drafter or next(iter(self.drafters)), rule or self.rule


def warm_up_prompt(target: Any) -> list[int]:
    """A prompt that repeats itself, so that every drafter makes guesses and drafting is compiled
    too."""
    length = 8 if target.max_context is None else min(8, target.max_context - 1)
    return [place % min(2, target.vocab_size) for place in range(length)]


def _stopping() -> ApiError:
    message = "The server is shutting down; try another one, or again later."
    return ApiError(message, status=503, kind="server_error", code="shutting_down", retry_after=5.0)
