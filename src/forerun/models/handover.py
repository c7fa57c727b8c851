"""Hands objects that one engine has made for a target, such as measurements, to the next engine.

Two engines may work on one target at once, in two threads or in two streams that are read in turn.
So an engine takes an item off the shelf and puts it back at the end: objects that are being written
to are never shared, and measurements of two engines never get mixed.
"""

from __future__ import annotations

from collections.abc import Hashable
from threading import Lock
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

from forerun.models.base import LanguageModel, identity

Item = TypeVar("Item")

MOST_ITEMS = 16
"""The most items per target; the oldest are dropped."""


class Shelf(Generic[Item]):
    """Items by target and key; they are freed with their target."""

    def __init__(self) -> None:
        self._items: WeakKeyDictionary[Any, dict[Hashable, Item]] = WeakKeyDictionary()
        self._lock = Lock()

    def take(self, target: LanguageModel, key: Hashable = None) -> Item | None:
        """Remove and return an item; None if there is none."""
        with self._lock:
            try:
                return self._items.get(identity(target), {}).pop(key, None)
            except TypeError:  # the target is not hashable or allows no weak references
                return None

    def put(self, item: Item, target: LanguageModel, key: Hashable = None) -> None:
        """Put an item on the shelf, in place of one with the same key."""
        with self._lock:
            try:
                items = self._items.setdefault(identity(target), {})
                items[key] = item
            except TypeError:
                return
            while len(items) > MOST_ITEMS:
                del items[next(iter(items))]
