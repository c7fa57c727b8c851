"""Who killed an engine: after a death the requests that were there are tried one at a time.

A model that raises (out of memory, say) does not tell whose text it was.  So all of them are
suspects, and each is alone in an engine of one row until it has gained a token there.  If that
engine dies too, its one request was the killer, and ends; the others go on together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from forerun.serve.admission.engine_roles import PooledEngine

MOST_MYSTERIES = 3
"""Engines that may die around a choice for no reason found, before that is held against it."""


@dataclass
class Death:
    """The death of one engine, and what trials have found out about it."""

    num_untried: int = 0  # suspects whose trial is not over
    is_explained: bool = False  # one of them was the killer

    @property
    def is_mystery(self) -> bool:
        """Whether all suspects were tried and none was to blame."""
        return not self.is_explained and not self.num_untried


class Trial:
    """Tries one suspect at a time; `turn` is given out in the order of asking."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self._deaths: WeakKeyDictionary[PooledEngine, Death] = WeakKeyDictionary()

    def accuse(self, engine: PooledEngine) -> Death:
        """Note one more request that was in an engine that died."""
        death = self._deaths.setdefault(engine, Death())
        death.num_untried += 1
        return death

    def blames(self, deaths: Sequence[Death]) -> bool:
        """Whether a choice that was in these engines shall not be sent to another one."""
        return sum(death.is_mystery for death in unexplained(deaths)) == MOST_MYSTERIES

    async def pause(self, deaths: Sequence[Death]) -> None:
        """Called before a choice that was in these engines is sent to another one; subclasses may
        wait."""

    def enter(self, engine: PooledEngine) -> None:
        """Called when a choice is given to an engine; subclasses may count."""

    def leave(self, engine: PooledEngine) -> None:
        """Called when a choice has ended in an engine, or the engine has died; subclasses may
        count."""


def unexplained(deaths: Sequence[Death]) -> Sequence[Death]:
    """The deaths since the last one that was explained."""
    count = 0
    while count < len(deaths) and not deaths[-1 - count].is_explained:
        count += 1
    return deaths[len(deaths) - count :]
