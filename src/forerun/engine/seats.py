"""Keeps track of which request has which row, and of the texts that free rows still store.

A free row keeps its stored text until the memory is needed. If a new request begins like the text
of any row, busy or free, it takes over that beginning and is fed only the rest. So the samples of
one prompt compute it once, and the next turn of a conversation reuses the turns before. Since a
fast first token reveals that a text was stored, rows are shared only by requests of one owner.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from forerun.engine.plan import RowChange
from forerun.engine.request import Request, Status
from forerun.models.base import Bounded, LanguageModel, Prefixes, shared_prefix

WORTH_TAKING = 16
"""A request reuses another row's text only if they share at least this many tokens; copying fewer
gains nothing."""
FIRST = 64
"""A request enters a row only if there is room for this many tokens of its answer."""


class Seats:
    """The rows of one engine, and the requests in them."""

    def __init__(self, target: LanguageModel, state: Any, num_rows: int) -> None:
        self.occupants: list[Request | None] = [None] * num_rows
        self._target: Any = target
        self._state = state
        self._texts: list[Sequence[int]] = [()] * num_rows  # begin with what each free row stores
        self._owners = [""] * num_rows  # of the texts that rows store
        self._free = list(range(num_rows))  # the one left longest ago first
        self._can_share = isinstance(target, Prefixes)
        self.is_bounded = isinstance(target, Bounded)
        self._changes: list[RowChange] = []

    @property
    def num_free(self) -> int:
        """The number of rows without a request."""
        return len(self._free)

    def reserve(self, row: int, length: int) -> bool:
        """Reserve memory for `length` tokens in a row; returns whether there was enough."""
        return not self.is_bounded or self._target.reserve(self._state, row, length)

    def enter(self, request: Request) -> int | None:
        """Give a request a row, copying as much of its text as another row already stores. Returns
        the row; None if memory is short."""
        tokens, row = request.tokens, self._free[0]
        source, length = self._best_source(tokens, request.owner)
        if length < WORTH_TAKING:
            if self._can_share:
                self._change("release", row)
        elif source in self._free and (
            2 * length >= self._state.lengths[source] or len(self._free) == 1
        ):
            row = source
            self._change("truncate", row, length)
        else:  # the source is busy, or stores much more that another request may want
            row = next(free for free in self._free if free != source)
            self._change("release", row)
            self._change("copy_prefix", source, row, length)
        first = min(FIRST, request.limit - request.num_output)
        if not self.reserve(row, len(tokens) + first):
            if row != source:
                self._change("release", row)
            self._rest(row)
            return None
        self._free.remove(row)
        self.occupants[row] = request
        request.has_row = True
        self._owners[row] = request.owner
        if not request.stats.preemptions:
            request.stats.num_reused = min(self._state.lengths[row], len(request.prompt))
        return row

    def leave(self, row: int) -> Request:
        """Remove and return the request of a row. The row keeps its stored text until the memory is
        needed."""
        request = self.occupants[row]
        assert request is not None
        self.occupants[row] = None
        request.has_row = False
        self._texts[row] = request.tokens
        self._free.append(row)
        self._changes.append(RowChange("leave", (row,)))
        if not self._can_share:
            self._change("release", row)
        self._rest(row)
        return request

    def take_changes(self) -> Sequence[RowChange]:
        """The changes of rows since the last call; the list is then emptied."""
        changes, self._changes = self._changes, []
        return changes

    def is_being_read(self, request: Request) -> bool:
        """Whether a row is reading this text and will soon store more of it than any row does
        now."""
        if not self._may_share(request.tokens) or any(
            other is not None and other.status is Status.ANSWERING and not self._state.lengths[row]
            for row, other in enumerate(self.occupants)
        ):
            return False  # the model stores nothing
        _, stored = self._best_source(request.tokens, request.owner)
        shared = (
            shared_prefix(other.tokens, request.tokens, len(request.tokens) - 1)
            for other in self.occupants
            if other is not None and other.status is Status.READING and other.owner == request.owner
        )
        return max(shared, default=0) - stored >= WORTH_TAKING

    def _rest(self, row: int) -> None:
        if self.is_bounded:
            self._target.rest(self._state, row)

    def _change(self, verb: str, *arguments: int) -> None:
        """Call a method of the model, and record the call."""
        getattr(self._target, verb)(self._state, *arguments)
        self._changes.append(RowChange(verb, arguments))

    def _may_share(self, tokens: Sequence[int]) -> bool:
        """Whether a text is long enough to be worth taking over from another row."""
        return self._can_share and len(tokens) > WORTH_TAKING

    def _best_source(self, tokens: Sequence[int], owner: str) -> tuple[int, int]:
        """The owner's row that stores most of the text's beginning, and how many tokens of it. At
        least one token is left to feed, because a model gives logits only for tokens that it is
        fed."""
        best, most = 0, 0
        if self._may_share(tokens):
            for row, other in enumerate(self.occupants):
                text = self._texts[row] if other is None else other.tokens
                limit = min(self._state.lengths[row], len(tokens) - 1)
                if limit > most and self._owners[row] == owner:
                    length = shared_prefix(text, tokens, limit)
                    if length > most:
                        best, most = row, length
        return best, most
