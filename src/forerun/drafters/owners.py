"""A drafter's memories of texts, kept apart by their owners.

A guess made from another request's text cannot change an answer, but a fast answer tells that the
text was there.  So a drafter that learns from one request for the next has a memory per owner,
and is told whose request enters a row (`Drafter`, `assign`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

Memory = TypeVar("Memory")

MOST_OWNERS = 32
"""Whose memories are kept; beyond them, those of owners without a request go, oldest first."""


class ByOwner(Generic[Memory]):
    """A memory for every owner, found by the rows that their requests are in.

    memories: of an earlier engine, by owner.
    """

    def __init__(
        self, make: Callable[[], Memory], memories: dict[str, Memory] | None = None
    ) -> None:
        self.memories: dict[str, Memory] = memories or {}  # by owner, the latest to come last
        self._make = make
        self._owners: dict[int, str] = {}  # by row

    def assign(self, row: int, owner: str) -> None:
        """Note that the next request of a row belongs to this owner."""
        self._owners[row] = owner
        self.memories[owner] = self.memories.pop(owner) if owner in self.memories else self._make()
        busy = set(self._owners.values())
        idle = [other for other in self.memories if other not in busy]
        for other in idle[: max(0, len(self.memories) - MOST_OWNERS)]:
            del self.memories[other]

    def release(self, row: int) -> None:
        """Note that the request of a row has ended; what it taught stays."""
        self._owners.pop(row, None)

    def __getitem__(self, row: int) -> Memory:
        """The memory of the owner of a row; rows that were never assigned share one."""
        owner = self._owners.get(row, "")
        if owner not in self.memories:
            self.memories[owner] = self._make()
        return self.memories[owner]
