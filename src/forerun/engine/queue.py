"""The requests that wait for a row, in the order in which they get one.

A higher priority comes first. Among equal priorities, the owner with the fewest rows comes first,
then the earliest request. Finding the next request is as fast among 100,000 as among ten.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Generic, Protocol, TypeVar

from forerun.base.errors import InputError, explain

MOST_PLACES = 256
"""The heap may always hold this many entries, outdated ones included, however few requests wait."""


class Waiting(Protocol):
    """The fields that a queued object needs. Its `number` is larger than those of objects queued
    earlier."""

    @property
    def number(self) -> int: ...
    @property
    def owner(self) -> str: ...
    @property
    def priority(self) -> int: ...


One = TypeVar("One", bound=Waiting)


class Queue(Generic[One]):
    """The requests without a row, and the number of rows that each owner has."""

    def __init__(self) -> None:
        self._waiting: dict[int, One] = {}  # by number
        # The same by owner, priority and number.
        self._lines: dict[str, dict[int, OrderedDict[int, One]]] = {}
        self._rows: Counter[str] = Counter()
        # Each line's place: its priority, negative, its owner's rows, its first number, its owner.
        # A place that has changed is pushed again; the old one is skipped when it is met.
        self._places: list[tuple[int, int, int, str]] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, number: int) -> bool:
        return number in self._waiting

    def __iter__(self) -> Iterator[One]:
        return iter(self._waiting.values())

    def push(self, request: One) -> None:
        """Add a request behind the others of the same owner and priority."""
        if len(self._join(request)) == 1:
            self._place(request.owner, request.priority)

    def put_back(self, request: One) -> None:
        """Return a popped request to the front of its line."""
        self._join(request).move_to_end(request.number, last=False)
        self.row_left(request.owner)

    def pop(self) -> One | None:
        """Remove and return the request that gets the next row; None if the queue is empty."""
        while self._places:
            place = heappop(self._places)
            priority, _, number, owner = -place[0], *place[1:]
            line = self._lines.get(owner, {}).get(priority)
            if not line or self._place_of(owner, priority) != place:
                continue
            del self._waiting[number]
            self._rows[owner] += 1
            _, request = line.popitem(last=False)
            self._place_all(owner)
            return request
        return None

    def row_left(self, owner: str) -> None:
        """Note that an owner has one row fewer."""
        self._rows[owner] -= 1
        if not self._rows[owner]:
            del self._rows[owner]
        self._place_all(owner)

    def remove(self, number: int) -> One:
        """Remove a waiting request by its number, and return it."""
        if number not in self._waiting:
            wrong = "No request of that number is waiting or running."
            raise InputError(explain(wrong, number, "It may have ended, or been aborted, already."))
        request = self._waiting.pop(number)
        line = self._lines[request.owner][request.priority]
        was_first = next(iter(line)) == number
        del line[number]
        if was_first:
            self._place(request.owner, request.priority)
        return request

    def clear(self) -> None:
        """Forget all requests that wait."""
        self._waiting.clear()
        self._lines.clear()
        self._places.clear()

    def _join(self, request: One) -> OrderedDict[int, One]:
        """Put a request at the end of its line; returns the line."""
        self._waiting[request.number] = request
        lines = self._lines.setdefault(request.owner, {})
        line = lines.setdefault(request.priority, OrderedDict())
        line[request.number] = request
        return line

    def _place_of(self, owner: str, priority: int) -> tuple[int, int, int, str]:
        return -priority, self._rows[owner], next(iter(self._lines[owner][priority])), owner

    def _place(self, owner: str, priority: int) -> None:
        """Add the line of an owner and priority to the heap, unless the line is empty."""
        if self._lines[owner][priority]:
            heappush(self._places, self._place_of(owner, priority))
            if len(self._places) > MOST_PLACES + 4 * len(self._waiting):
                self._forget_old_places()
        else:
            del self._lines[owner][priority]
            if not self._lines[owner]:
                del self._lines[owner]

    def _forget_old_places(self) -> None:
        """Rebuild the heap without outdated entries, which would pile up in a queue that is never
        empty."""
        lines = ((owner, priority) for owner, by in self._lines.items() for priority in by)
        self._places = [self._place_of(*line) for line in lines]
        heapify(self._places)

    def _place_all(self, owner: str) -> None:
        for priority in list(self._lines.get(owner, ())):
            self._place(owner, priority)
