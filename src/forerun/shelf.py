"""What one engine has learned about a target, kept for the next one.

Two engines may be at work on one target at once, in two threads or in two streams that are read
in turn.  So what is on a shelf belongs to whoever takes it, until it is put back: nothing that is
being written to is shared, and one engine's experience never gets mixed into another's.
"""

from __future__ import annotations

from collections.abc import Hashable
from threading import Lock
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

Item = TypeVar("Item")


class Shelf(Generic[Item]):
    """Items by owner and key; they go when their owner does."""

    def __init__(self) -> None:
        self._items: WeakKeyDictionary[Any, dict[Hashable, Item]] = WeakKeyDictionary()
        self._lock = Lock()

    def take(self, owner: Any, key: Hashable = None) -> Item | None:
        """The item, which is no longer on the shelf; None if nobody has put one there."""
        with self._lock:
            try:
                return self._items.get(owner, {}).pop(key, None)
            except TypeError:  # not hashable, or cannot be referred to weakly
                return None

    def put(self, item: Item, owner: Any, key: Hashable = None) -> None:
        """Leave an item for whoever comes next, in place of what is there."""
        with self._lock:
            try:
                self._items.setdefault(owner, {})[key] = item
            except TypeError:
                return
