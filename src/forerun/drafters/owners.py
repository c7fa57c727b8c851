"""Keeps what a drafter remembers of texts separate for each owner.

A guess made from another request's text cannot change an answer, but a fast answer reveals that the
text was there. So a drafter that learns from one request for the next has a memory per owner; its
method `assign` receives the owner of each request.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

Memory = TypeVar("Memory")

MOST_OWNERS = 32
"""The largest number of owners whose memories are kept. Beyond it, the memories of owners without a
request are dropped, oldest first."""


class ByOwner(Generic[Memory]):
    """One memory per owner, looked up by the row of a request.

    memories: of an earlier engine, by owner.
    """

    def __init__(
        self, make: Callable[[], Memory], memories: dict[str, Memory] | None = None
    ) -> None:
        self.memories: dict[str, Memory] = memories or {}  # by owner, the latest to come last
        self._make = make
        self._owners: dict[int, str] = {}  # by row

    def assign(self, row: int, owner: str) -> None:
        """Record that the next request of a row belongs to this owner."""
        self._owners[row] = owner
        self.memories[owner] = self.memories.pop(owner) if owner in self.memories else self._make()
        busy = set(self._owners.values())
        idle = [other for other in self.memories if other not in busy]
        for other in idle[: max(0, len(self.memories) - MOST_OWNERS)]:
            del self.memories[other]

    def release(self, row: int) -> None:
        """Record that the request of a row has ended; its owner's memory stays."""
        self._owners.pop(row, None)

    def __getitem__(self, row: int) -> Memory:
        """The memory of the owner of a row; rows without an owner share one."""
        owner = self._owners.get(row, "")
        if owner not in self.memories:
            self.memories[owner] = self._make()
        return self.memories[owner]
