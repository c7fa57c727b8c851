"""Which request sits in which row, and what rows still store of requests that are gone.

A free row keeps what it stores until it is needed.  A request that begins like a text some row
stores, busy or free, takes that beginning over and is fed only the rest: the samples of one prompt
compute it once, and the next turn of a conversation finds the turns before it.  A fast first token
tells that the text was there, so rows serve requests of the same owner only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from forerun.engine.plan import RowChange
from forerun.engine.request import Request, Status
from forerun.models.base import Bounded, LanguageModel, Prefixes, shared_prefix

WORTH_TAKING = 16
"""Shared tokens below which a request is simply fed: copying them gains nothing."""
FIRST = 64
"""Tokens of an answer that there must be room for before a request enters a row."""


class Seats:
    """The rows of one engine."""

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
        """Make room for a text; returns False where there is none."""
        return not self.is_bounded or self._target.reserve(self._state, row, length)

    def enter(self, request: Request) -> int | None:
        """Give a request a row, with as much of its text as another row already stores; None where
        there is no room for it."""
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
        """Take the request out of a row, which keeps what it stores until it is needed."""
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
        """The changes of rows since the last call."""
        changes, self._changes = self._changes, []
        return changes

    def is_being_read(self, request: Request) -> bool:
        """Whether some row is reading this text and will soon store more of it than any row does
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
        """Whether a text is long enough for its beginning to be worth taking over."""
        return self._can_share and len(tokens) > WORTH_TAKING

    def _best_source(self, tokens: Sequence[int], owner: str) -> tuple[int, int]:
        """The row of this owner that stores most of a text's beginning, and how much: all but one
        token at most, because a row has to be fed something to be given logits."""
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
