"""Finds the request that makes an engine fail, by trying the suspects one at a time.

If a model raises (out of memory, say), the exception does not say which request caused it. So all
requests in that engine are suspects, and each runs alone in an engine with one row until it has
gained a token. If that engine fails too, its only request was the cause, and ends with an error;
the others continue together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from forerun.serve.admission.engine_roles import PooledEngine

MOST_MYSTERIES = 3
"""A choice is not tried again once this many engines have died around it without a cause being
found."""


@dataclass
class Death:
    """The failure of one engine, and what trying its requests has shown."""

    num_untried: int = 0  # suspects whose trial is not over
    is_explained: bool = False  # one of them was the killer

    @property
    def is_mystery(self) -> bool:
        """Whether all suspects were tried and none of them was the cause."""
        return not self.is_explained and not self.num_untried


class Trial:
    """Tries one suspect at a time; `turn` is a lock that is granted in the order of asking."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self._deaths: WeakKeyDictionary[PooledEngine, Death] = WeakKeyDictionary()

    def accuse(self, engine: PooledEngine) -> Death:
        """Record a request that was in a failed engine. Returns that engine's `Death`."""
        death = self._deaths.setdefault(engine, Death())
        death.num_untried += 1
        return death

    def blames(self, deaths: Sequence[Death]) -> bool:
        """Whether a choice has been in too many unexplained failures to be sent to another
        engine."""
        return sum(death.is_mystery for death in unexplained(deaths)) == MOST_MYSTERIES

    async def pause(self, deaths: Sequence[Death]) -> None:
        """Called before a choice moves from a failed engine to another one; subclasses may wait."""

    def enter(self, engine: PooledEngine) -> None:
        """Called when a choice is handed to an engine; subclasses may count."""

    def leave(self, engine: PooledEngine) -> None:
        """Called when a choice has ended in an engine, or the engine has failed; subclasses may
        count."""


def unexplained(deaths: Sequence[Death]) -> Sequence[Death]:
    """The failures since the last one whose cause was found."""
    count = 0
    while count < len(deaths) and not deaths[-1 - count].is_explained:
        count += 1
    return deaths[len(deaths) - count :]
