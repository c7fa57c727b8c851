"""Those who wait for a row, in the order in which they are given one.

A higher priority comes first.  Among equals the owner with the fewest rows comes first, then who
came first.  The next request is found as fast among a hundred thousand as among ten.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Generic, Protocol, TypeVar

from forerun.base.errors import InputError, explain

MOST_PLACES = 256
"""Places that are kept however few wait, old ones included."""


class Waiting(Protocol):
    """A request, or an object that stands for one; its `number` is larger than those of earlier
    ones."""

    @property
    def number(self) -> int: ...
    @property
    def owner(self) -> str: ...
    @property
    def priority(self) -> int: ...


One = TypeVar("One", bound=Waiting)


class Queue(Generic[One]):
    """The requests that have no row, and how many rows each owner has."""

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
        """Let a request wait behind the others of its owner and priority."""
        if len(self._join(request)) == 1:
            self._place(request.owner, request.priority)

    def put_back(self, request: One) -> None:
        """Undo the `pop` of a request."""
        self._join(request).move_to_end(request.number, last=False)
        self.row_left(request.owner)

    def pop(self) -> One | None:
        """Take out the request that is next to have a row; None if nobody waits."""
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
        """Take a request out that will not have a row."""
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
        """Note the place of a line; an empty line has none."""
        if self._lines[owner][priority]:
            heappush(self._places, self._place_of(owner, priority))
            if len(self._places) > MOST_PLACES + 4 * len(self._waiting):
                self._forget_old_places()
        else:
            del self._lines[owner][priority]
            if not self._lines[owner]:
                del self._lines[owner]

    def _forget_old_places(self) -> None:
        """Remove outdated places, which a queue that never becomes empty would otherwise keep for
        ever."""
        lines = ((owner, priority) for owner, by in self._lines.items() for priority in by)
        self._places = [self._place_of(*line) for line in lines]
        heapify(self._places)

    def _place_all(self, owner: str) -> None:
        for priority in list(self._lines.get(owner, ())):
            self._place(owner, priority)
