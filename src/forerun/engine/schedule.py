"""Decides which requests take part in the next round, and how much of its text each reads.

All requests that are being answered take part in every round. Texts that still have to be read
share the round's remaining room.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from forerun.base.errors import EngineFullError, explain
from forerun.engine.gathering import Gathering
from forerun.engine.pacing import Pacing
from forerun.engine.plan import Load, RoundPlan, Span
from forerun.engine.queue import Queue
from forerun.engine.request import Request, Status
from forerun.engine.seats import Seats

MOST_TOKENS = 4096
"""The most prompt tokens fed in one round, because the memory that a pass needs grows with them."""
OVERTAKEN = 3
"""While a prompt waits, later prompts may be read first, up to this many times its own number of
tokens."""
PATIENCE = 32
"""If there was no room for a request, it is tried again after this many rounds, or as soon as a row
is left."""
MOST_PASSED_OVER = 64
"""The most requests that others may overtake because the beginning of their text is just being read
by another row."""

Seated = tuple[int, Request]
"""A row and its request."""


def check_room(num_waiting: int, most: int | None) -> None:
    """Refuse a request if `most` are waiting already."""
    if most is not None and num_waiting >= most:
        cure = "Try again when others have finished, or raise max_waiting."
        received = f"one request more than the {most} that may wait"
        raise EngineFullError(explain("The engine is full.", received, cure))


class Schedule:
    """Moves requests into rows, and plans the rounds in which they take part.

    slowdown: a round that reads parts of prompts may take this many times as long as usual; None
    reads parts of `MOST_TOKENS`.
    max_waiting: more waiting requests than these are refused.
    """

    def __init__(
        self,
        seats: Seats,
        state: Any,
        *,
        slowdown: float | None = None,
        max_waiting: int | None = None,
    ) -> None:
        self.waiting = Queue[Request]()
        self._seats = seats
        self._state = state
        self._max_waiting = max_waiting
        self._pacing = None if slowdown is None else Pacing(slowdown)
        self._num_read = 0  # prompt tokens, of all requests
        self._stores_parts = True  # until a model turns out to store nothing
        self._room: int | None = None  # for prompts, in the next round; None: any
        self._gathering = Gathering()
        self._costs_drafts = False  # that the next round reads prompts
        self._num_full = 0  # rounds in which nobody is admitted, because there was no room

    def submit(self, request: Request) -> None:
        """Queue a request; raises if the queue is full."""
        check_room(len(self.waiting) - self._seats.num_free, self._max_waiting)
        request.num_read_before = self._num_read
        self.waiting.push(request)

    def admit(self, welcome: Callable[[int, Request], None]) -> None:
        """Give free rows to waiting requests, as far as memory allows. If another row is reading
        the beginning of a request's text, the request waits until it can take that over."""
        self._num_full = max(0, self._num_full - 1)
        if not self.waiting:
            return
        passed_over: list[Request] = []
        if not any(self._seats.occupants):
            self._num_full = 0
            self._gathering.forget()
        while not self._num_full and self._seats.num_free and len(passed_over) < MOST_PASSED_OVER:
            request = self.waiting.pop()
            if request is None:
                break
            if self._seats.is_being_read(request):
                passed_over.append(request)
            elif (row := self._seats.enter(request)) is not None:
                self._gathering.add(len(request.tokens) - self._state.lengths[row])
                welcome(row, request)
            else:
                passed_over.append(request)
                self._num_full = PATIENCE
        for request in reversed(passed_over):
            self.waiting.put_back(request)

    def make_room(self, send_back: Callable[[int], None]) -> None:
        """Reserve memory for the next tokens of all requests that have a row. While it is short,
        send the youngest request of the lowest priority back to the queue; its text is read again
        later."""
        if not self._seats.is_bounded:
            return
        seated = self._seated
        if all(self._seats.reserve(row, len(request.tokens)) for row, request in seated):
            return
        seated.sort(key=lambda pair: (-pair[1].priority, pair[1].number))
        while seated:
            row, request = seated[0]
            if self._seats.reserve(row, len(request.tokens)):
                del seated[0]
            else:
                send_back(seated.pop()[0])

    def leave(self, row: int) -> None:
        """Note that the request of a row has ended."""
        request = self._seats.leave(row)
        self.waiting.row_left(request.owner)
        self._num_full = 0

    def send_back(self, row: int) -> None:
        """Return the request of a row to the queue, ahead of others of its owner and priority."""
        self.waiting.put_back(self._seats.leave(row))
        self._num_full = PATIENCE

    def plan(self) -> RoundPlan:
        """Plan the next round: all rows that are being answered, and parts of texts to be read."""
        lengths, seated = self._state.lengths, self._seated
        if len(seated) > 1:
            seated.sort(key=lambda pair: pair[1].number)
        ends = self._read(seated)
        spans = []
        for row, request in seated:
            start, end = lengths[row], ends.get(row, len(request.tokens))
            if end > start:
                answers = end == len(request.tokens)
                spans.append(Span(row, request, start, end, row in ends, answers))
        return RoundPlan(spans, changes=self._seats.take_changes() if spans else ())

    @property
    def _seated(self) -> list[Seated]:
        occupants = enumerate(self._seats.occupants)
        return [(row, request) for row, request in occupants if request is not None]

    def _read(self, seated: Sequence[Seated]) -> dict[int, int]:
        """Decide up to which token each new text is read in the next round. Returns the ends by
        row.

        With pacing, the prompt with the least left comes first, so that a short one does not wait
        for long ones. But others may overtake it by at most `OVERTAKEN` times as many tokens as it
        has left, so long ones are read too. The last token of a text begins its answer and needs no
        budget. Where a round that reads has no drafts, prompts wait for one another.
        """
        lengths = self._state.lengths
        new = [(row, request) for row, request in seated if request.status is Status.READING]
        if not self._stores_parts:
            return {row: len(request.tokens) for row, request in new}
        budget, ends = MOST_TOKENS, {}
        if self._pacing is not None and new:
            num_answered = len(seated) - len(new)
            budget = self._pacing.num_tokens(num_answered, self._room)
            num_left = sum(len(request.tokens) - lengths[row] for row, request in new)
            is_dear = num_answered and self._costs_drafts and budget
            if is_dear and self._gathering.waits(num_left, budget):
                budget = 0

            def place(pair: Seated) -> int:
                row, request = pair
                left: int = len(request.tokens) - lengths[row]
                return request.num_read_before + OVERTAKEN * left

            new.sort(key=place)
        for row, request in new:
            left = len(request.tokens) - lengths[row]
            ends[row] = lengths[row] + (left if left == 1 else min(left, budget))
            budget = max(0, budget - left)
        return ends

    def learn(
        self,
        plan: RoundPlan,
        load: Load,
        seconds: float,
        is_timed: bool,
        room: int | None,
        costs_drafts: bool,
    ) -> None:
        """Learn from an executed plan.

        seconds, is_timed: how long the round took, and whether that is typical of its load.
        room: the number of prompt tokens that the next round has room for.
        costs_drafts: whether a round that reads prompts has no drafts.
        """
        self._room, self._costs_drafts = room, costs_drafts
        self._gathering.pass_by(seconds)
        for span in plan.reading:
            if self._state.lengths[span.row] < span.end:
                self._stores_parts = False
        self._num_read += plan.load.num_read
        if self._pacing is not None and is_timed and any(load):
            self._pacing.learn(seconds, *load)
