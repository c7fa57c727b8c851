"""Decides whether a request makes replicas die, and should not be sent to another one.

A replica that died cannot say which request was the cause, and replicas are not emptied to find
out. But the rate at which other answers lose their replicas is known. A request is blamed if the
replicas that had it, and gave it no token, died more often than would happen by chance once in a
thousand at that rate. Before it is sent again it waits, longer each time: if it was the cause,
others survive meanwhile; if another request was, they do not.
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
"""The assumed mean number of seconds that an answer runs before it loses its replica, until better
data are known."""
PAUSE = 1.0  # seconds that a request stays away after its second death
LONGEST_PAUSE = 30.0


@dataclass
class Loss(Death):
    """The loss of a replica, as seen by one answer that ran there."""

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
        """Whether a request's replicas died more often than chance explains, by a Poisson test at
        the rate of all other losses."""
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
    """The probability of at least `count` events if `expected` are expected (Poisson)."""
    below = sum(math.exp(-expected) * expected**k / math.factorial(k) for k in range(count))
    return 1 - below
