"""A fleet of replicas: their measured costs, what is asked of them, and what came of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from forerun.base.errors import InputError, explain

Failover = Literal["exact", "again"]
"""What happens to a request whose replica dies: it goes on elsewhere with the same text, or its
client sees an error and asks for all of it again."""


@dataclass(frozen=True)
class Autoscale:
    """As Ray Serve does it: as many replicas as keep `target` requests on each.

    A change is made when it has been called for all through its delay.
    """

    least: int
    most: int
    target: float  # requests that wait or run, per replica
    interval: float = 10.0  # seconds between looks
    up_delay: float = 30.0
    down_delay: float = 600.0


@dataclass(frozen=True)
class Fleet:
    """Replicas, their measured costs, and what is asked of them.

    token_seconds: a token of one answer, with 1, 2, ... answers in the replica; the last entry
    holds for more.  Answer lengths are exponential.
    """

    replicas: int
    rate: float  # requests per second
    token_seconds: Sequence[float]
    rows: int = 8
    answer_tokens: float = 100.0  # mean
    prompt_tokens: float = 0.0
    prompt_cost: float = 0.0  # reading a prompt token, in answer tokens
    max_queue: float = math.inf
    start_seconds: float = 0.0  # until a new replica answers
    death_rate: float = 0.0  # per replica and second
    detect_seconds: float = 0.0  # until a death is noticed
    failover: Failover = "exact"
    autoscale: Autoscale | None = None
    surge: float = 1.0  # the rate in the middle third, as a multiple

    def __post_init__(self) -> None:
        positive = ("replicas", "rate", "rows", "answer_tokens", "surge")
        rest = ("prompt_tokens", "prompt_cost", "start_seconds", "death_rate", "detect_seconds")
        for name in (*positive, *rest):
            value = getattr(self, name)
            if not (0 <= value < math.inf) or (name in positive and not value):
                least = "above 0" if name in positive else "of 0 or more"
                raise InputError(
                    explain(f"{name} has no meaning.", value, f"Use a number {least}.")
                )
        if not self.token_seconds or min(self.token_seconds) <= 0:
            cure = "Give the seconds of a token, for 1, 2, ... answers at once."
            raise InputError(explain("A token takes time.", list(self.token_seconds), cure))

    def seconds_at(self, num_running: int) -> float:
        """Seconds of a token of one answer, with so many in the replica."""
        return self.token_seconds[min(num_running, len(self.token_seconds)) - 1]

    @property
    def work(self) -> float:
        """Mean work of a request, in answer tokens."""
        return self.answer_tokens + self.prompt_tokens * self.prompt_cost

    @property
    def capacity(self) -> float:
        """Requests per second of one replica that is always full."""
        return self.rows / (self.work * self.seconds_at(self.rows))


@dataclass
class Outcome:
    """What happened.  Waits and totals leave out the first quarter of the answers, and `busy` is
    of the time from there to the last arrival: the fleet is empty before and after."""

    waits: list[float] = field(default_factory=list)  # seconds before the first row
    totals: list[float] = field(default_factory=list)  # seconds until the answer was whole
    pauses: list[float] = field(default_factory=list)  # seconds between a death and going on
    num_answered: int = 0
    num_rejected: int = 0
    num_broken: int = 0  # answers that clients saw break
    num_deaths: int = 0
    most_waiting: int = 0
    most_replicas: int = 0
    replica_seconds: float = 0.0  # of replicas that run or start
    busy_seconds: float = 0.0  # of rows
    busy: float = 0.0  # share of the rows
    seconds: float = 0.0

    def percentile(self, name: Literal["waits", "totals", "pauses"], share: float) -> float:
        values = getattr(self, name)
        return float(np.quantile(values, share)) if values else math.nan
