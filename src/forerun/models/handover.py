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

from forerun.models.base import LanguageModel, identity

Item = TypeVar("Item")

MOST_ITEMS = 16
"""Per target; beyond them the oldest go."""


class Shelf(Generic[Item]):
    """Items by target and key; they go when their target does."""

    def __init__(self) -> None:
        self._items: WeakKeyDictionary[Any, dict[Hashable, Item]] = WeakKeyDictionary()
        self._lock = Lock()

    def take(self, target: LanguageModel, key: Hashable = None) -> Item | None:
        """The item, which is no longer on the shelf; None if nobody has put one there."""
        with self._lock:
            try:
                return self._items.get(identity(target), {}).pop(key, None)
            except TypeError:  # not hashable, or cannot be referred to weakly
                return None

    def put(self, item: Item, target: LanguageModel, key: Hashable = None) -> None:
        """Leave an item for whoever comes next, in place of what is there."""
        with self._lock:
            try:
                items = self._items.setdefault(identity(target), {})
                items[key] = item
            except TypeError:
                return
            while len(items) > MOST_ITEMS:
                del items[next(iter(items))]
