"""Whether a request is to blame for the replicas that died around it.

A replica that died cannot be asked who killed it, and no other is emptied to find out.  What can be
told is how often others lose theirs.  A request is blamed if replicas that had given it no token
died as often as would be a chance of one in a thousand, at the rate at which other answers were
lost in the same time.  Before it is sent again it stays away for a while, longer each time: if it
kills, others live meanwhile, and if somebody else kills, they do not.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from forerun.serve.admission.engine_deaths import Death, Trial, unexplained

LEAST_DEATHS = 3
CHANCE = 1e-3
USUAL_SECONDS = 60.0
"""For which an answer is in a replica before that is lost, as long as nothing else is known."""
PAUSE = 1.0  # seconds that a request stays away after its second death
LONGEST_PAUSE = 30.0


@dataclass
class Loss(Death):
    """The end of a replica, as seen by one answer that ran there."""

    seconds: float = 0.0  # that the answer was there
    others: tuple[int, float] = (0, 0.0)  # answers that had been lost when it came, and seconds


class Blame(Trial):
    """Counts the answers that lost their replicas, and the seconds of all answers in replicas."""

    def __init__(self) -> None:
        super().__init__()
        self.num_lost = 0
        self.seconds = 0.0

    def enter(self, engine: Any) -> None:
        engine.known = self.num_lost, self.seconds

    def leave(self, engine: Any) -> None:
        self.num_lost += engine.failure is not None
        self.seconds += engine.seconds

    def accuse(self, engine: Any) -> Death:
        return Loss(is_explained=engine.has_given, seconds=engine.seconds, others=engine.known)

    def blames(self, deaths: Sequence[Death]) -> bool:
        """Whether replicas died around a request more often than chance explains, by a Poisson test
        at the rate of all other losses."""
        losses = [death for death in unexplained(deaths) if isinstance(death, Loss)]
        if len(losses) < LEAST_DEATHS:
            return False
        seconds = sum(loss.seconds for loss in losses)
        num_before, seconds_before = losses[0].others
        num_others = self.num_lost - num_before - (len(losses) - 1)
        seconds_of_others = self.seconds - seconds_before - (seconds - losses[-1].seconds)
        rate = (1 + num_others) / (USUAL_SECONDS + seconds_of_others)
        return chance_of(len(losses), rate * seconds) < CHANCE

    async def pause(self, deaths: Sequence[Death]) -> None:
        if (count := len(unexplained(deaths))) > 1:
            seconds = min(PAUSE * 2 ** (count - 2), LONGEST_PAUSE)
            await asyncio.sleep(random.uniform(0.5, 1.5) * seconds)  # apart from its companions


def chance_of(count: int, expected: float) -> float:
    """The chance of at least `count` events where `expected` are expected (Poisson)."""
    below = sum(math.exp(-expected) * expected**k / math.factorial(k) for k in range(count))
    return 1 - below
