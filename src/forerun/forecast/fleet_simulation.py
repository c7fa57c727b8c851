"""Simulates a fleet of replicas behind one queue, event by event: waiting, autoscaling, deaths.

All requests of a replica advance at one speed, which depends on their number.  So each replica has
a clock that counts tokens per row, a request ends when that clock has advanced by its work, and
only the next end in each replica must be known.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Literal

import numpy as np

from forerun.base.errors import InputError, explain

Failover = Literal["exact", "again"]
"""The fate of a request whose replica dies: it goes on elsewhere with the same text, or its client
gets an error and sends it again."""


@dataclass(frozen=True)
class Autoscale:
    """Autoscaling as in Ray Serve: as many replicas as keep `target` requests on each.

    A change is made after it has been called for during its whole delay.
    """

    least: int
    most: int
    target: float  # requests that wait or run, per replica
    interval: float = 10.0  # seconds between looks
    up_delay: float = 30.0
    down_delay: float = 600.0


@dataclass(frozen=True)
class Fleet:
    """Replicas, their measured costs, and their load.

    token_seconds: seconds for a token of one answer, with 1, 2, ... answers in the replica; the
    last entry holds for more.  The lengths of answers are distributed exponentially.
    """

    replicas: int
    rate: float  # requests per second
    token_seconds: Sequence[float]
    rows: int = 8
    answer_tokens: float = 100.0  # mean
    prompt_tokens: float = 0.0
    prompt_cost: float = 0.0  # of reading a prompt token, in answer tokens
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
        """Seconds for a token of one answer, with `num_running` answers in the replica."""
        return self.token_seconds[min(num_running, len(self.token_seconds)) - 1]

    @property
    def work(self) -> float:
        """The mean work of a request, in answer tokens."""
        return self.answer_tokens + self.prompt_tokens * self.prompt_cost

    @property
    def capacity(self) -> float:
        """Requests per second of one replica that is always full."""
        return self.rows / (self.work * self.seconds_at(self.rows))


@dataclass
class FleetOutcome:
    """The results of a simulation.

    Waits and totals leave out the first quarter of the answers, and `busy` is measured from then to
    the last arrival, because the fleet is emptier before and after.
    """

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
        """The quantile `share` of these seconds; NaN if there are none."""
        values = getattr(self, name)
        return float(np.quantile(values, share)) if values else math.nan


@dataclass(eq=False)
class SimulatedJob:
    """A request that waits or runs."""

    arrived: float
    answer: float  # tokens
    left: float  # tokens that are not emitted yet
    first_start: float | None = None
    died: float | None = None  # the time its replica died, while it waits for another


@dataclass(eq=False)
class SimulatedReplica:
    """A replica: its clock, and a heap of its jobs by the reading of the clock at their end."""

    number: int
    jobs: list[tuple[float, int, SimulatedJob]] = field(default_factory=list)  # a heap
    tokens: float = 0.0  # the clock: tokens per row so far
    updated: float = 0.0
    version: int = 0  # of the plan for its next end: events of older plans are ignored
    is_leaving: bool = False

    def advance(self, now: float, fleet: Fleet) -> None:
        """Set the clock to the time `now`."""
        if self.jobs:
            self.tokens += (now - self.updated) / fleet.seconds_at(len(self.jobs))
        self.updated = now


def simulate_fleet(fleet: Fleet, *, num_requests: int = 20_000, seed: int = 0) -> FleetOutcome:
    """Simulate `num_requests` requests until all are answered."""
    return _Simulation(fleet, num_requests, seed).run()


class _Simulation:
    """A simulation by events: arrivals, ends of answers, deaths and starts of replicas, and looks
    of the autoscaler.  Time passes from event to event; the first quarter of the requests warms up
    and is not counted."""

    def __init__(self, fleet: Fleet, num_requests: int, seed: int) -> None:
        self.fleet = fleet
        self._requests = np.random.default_rng([seed, 0])
        self._lives = np.random.default_rng([seed, 1])  # own numbers: deaths change no requests
        self.outcome = FleetOutcome()
        self.now = 0.0
        self._num_requests = num_requests
        self._num_skipped = num_requests // 4
        self._num_arrived = 0
        self._num_open = 0
        self._order = count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._queue: deque[SimulatedJob] = deque()
        self._by_load: list[dict[int, SimulatedReplica]] = [{} for _ in range(fleet.rows + 1)]
        self._replicas: dict[int, SimulatedReplica] = {}
        self._num_starting = 0
        self._busy_rows = 0
        self._row_seconds = [0.0, 0.0]  # of busy and of all rows, while requests arrive
        self._called_for: dict[int, float] = {}  # the time since more (1) or fewer (-1) are needed

    def run(self) -> FleetOutcome:
        """Play events in their order until every request has been answered or rejected; returns the
        counts."""
        scale = self.fleet.autoscale
        for _ in range(self.fleet.replicas if scale is None else scale.least):
            self._add_replica()
        self._after(self._gap(), self._arrive)
        if scale is not None:
            self._after(scale.interval, self._look)
        while self._num_arrived < self._num_requests or self._num_open:
            time, _, event = heapq.heappop(self._events)
            self._pass_time(time)
            event()
        self.outcome.seconds = self.now
        busy, rows = self._row_seconds
        self.outcome.busy = busy / rows if rows else 0.0
        return self.outcome

    def _after(self, seconds: float, event: Callable[[], None]) -> None:
        """Plan an event, `seconds` from now."""
        heapq.heappush(self._events, (self.now + seconds, next(self._order), event))

    def _pass_time(self, time: float) -> None:
        """Let the clock go on to `time`, and count replicas and busy rows for the seconds
        between."""
        seconds = time - self.now
        num_replicas = len(self._replicas) + self._num_starting
        self.outcome.replica_seconds += seconds * num_replicas
        self.outcome.busy_seconds += seconds * self._busy_rows
        if self._num_skipped <= self._num_arrived < self._num_requests:
            self._row_seconds[0] += seconds * self._busy_rows
            self._row_seconds[1] += seconds * num_replicas * self.fleet.rows
        self.outcome.most_replicas = max(self.outcome.most_replicas, num_replicas)
        self.now = time

    def _gap(self) -> float:
        """Seconds until the next request: exponential, at a higher rate in the middle third if
        there is a surge."""
        third = self._num_requests / (2 + self.fleet.surge)  # a third of the time each
        is_surging = third <= self._num_arrived < self._num_requests - third
        rate = self.fleet.rate * (self.fleet.surge if is_surging else 1.0)
        return float(self._requests.exponential(1 / rate))

    def _arrive(self) -> None:
        """A request arrives: it waits, or is rejected where the queue is full."""
        self._num_arrived += 1
        if self._num_arrived < self._num_requests:
            self._after(self._gap(), self._arrive)
        fleet = self.fleet
        tokens = float(self._requests.exponential(fleet.answer_tokens))
        if len(self._queue) >= fleet.max_queue and not self._has_room():
            self.outcome.num_rejected += 1
            return
        self._num_open += 1
        self._queue.append(SimulatedJob(self.now, tokens, tokens))
        self._give_out()
        self.outcome.most_waiting = max(self.outcome.most_waiting, len(self._queue))

    def _has_room(self) -> bool:
        return any(self._by_load[load] for load in range(self.fleet.rows))

    def _give_out(self) -> None:
        """Start waiting jobs on the replicas with the fewest jobs."""
        while self._queue:
            load = next((b for b in range(self.fleet.rows) if self._by_load[b]), None)
            if load is None:
                return
            replica = next(iter(self._by_load[load].values()))
            self._start(self._queue.popleft(), replica)

    def _start(self, job: SimulatedJob, replica: SimulatedReplica) -> None:
        """Put a job on a replica.  It ends when each row of the replica has made as many tokens as
        the job's reading and answer take."""
        if job.first_start is None:
            job.first_start = self.now
        if job.died is not None:
            self.outcome.pauses.append(self.now - job.died)
            job.died = None
        replica.advance(self.now, self.fleet)
        self._remove_load(replica)
        end = replica.tokens + self._reading(job) + job.left
        heapq.heappush(replica.jobs, (end, next(self._order), job))
        self._busy_rows += 1
        self._add_load(replica)
        self._plan_end(replica)

    def _reading(self, job: SimulatedJob) -> float:
        """The cost of reading a job's prompt and its text so far, in answer tokens."""
        fleet = self.fleet
        return fleet.prompt_cost * (fleet.prompt_tokens + job.answer - job.left)

    def _plan_end(self, replica: SimulatedReplica) -> None:
        """Schedule the end of the replica's shortest job; an end scheduled earlier no longer
        counts."""
        replica.version += 1
        if replica.jobs:
            tokens = max(0.0, replica.jobs[0][0] - replica.tokens)
            seconds = tokens * self.fleet.seconds_at(len(replica.jobs))
            version = replica.version
            self._after(seconds, lambda: self._end_job(replica, version))

    def _end_job(self, replica: SimulatedReplica, version: int) -> None:
        """The replica's shortest job ends, unless its number of jobs has changed since this was
        planned."""
        if replica.version != version:
            return
        replica.advance(self.now, self.fleet)
        self._remove_load(replica)
        _, _, job = heapq.heappop(replica.jobs)
        self._busy_rows -= 1
        self._add_load(replica)
        self._plan_end(replica)
        self._num_open -= 1
        self.outcome.num_answered += 1
        if self.outcome.num_answered > self._num_skipped:
            assert job.first_start is not None
            self.outcome.waits.append(job.first_start - job.arrived)
            self.outcome.totals.append(self.now - job.arrived)
        if replica.is_leaving and not replica.jobs:
            self._drop(replica)
        self._give_out()

    def _add_replica(self) -> None:
        """Add a replica that takes jobs at once and dies after a random time."""
        replica = SimulatedReplica(next(self._order), updated=self.now)
        self._replicas[replica.number] = replica
        self._add_load(replica)
        if self.fleet.death_rate:
            life = float(self._lives.exponential(1 / self.fleet.death_rate))
            self._after(life, lambda: self._die(replica))
        self._give_out()

    def _start_replica(self) -> None:
        """Begin to start a replica, which is ready after `start_seconds`."""

        def ready() -> None:
            self._num_starting -= 1
            self._add_replica()

        self._num_starting += 1
        self._after(self.fleet.start_seconds, ready)

    def _die(self, replica: SimulatedReplica) -> None:
        """Remove a replica; once its death is noticed, its jobs wait ahead of all others."""
        if replica.number not in self._replicas:
            return
        fleet = self.fleet
        replica.advance(self.now, fleet)
        jobs = [(end, job) for end, _, job in replica.jobs]
        self._busy_rows -= len(jobs)
        self._drop(replica)
        self.outcome.num_deaths += 1
        for end, job in jobs:
            job.died = self.now
            if fleet.failover == "exact":
                job.left = min(job.left, end - replica.tokens)  # more: it was still reading
            else:
                self.outcome.num_broken += 1
                job.left = job.answer

        def noticed() -> None:
            self._queue.extendleft(job for _, job in reversed(jobs))
            if not replica.is_leaving:
                self._start_replica()
            self._give_out()

        self._after(fleet.detect_seconds, noticed)

    def _drop(self, replica: SimulatedReplica) -> None:
        self._remove_load(replica)
        del self._replicas[replica.number]
        replica.jobs = []
        replica.version += 1

    def _add_load(self, replica: SimulatedReplica) -> None:
        if not replica.is_leaving:
            self._by_load[len(replica.jobs)][replica.number] = replica

    def _remove_load(self, replica: SimulatedReplica) -> None:
        self._by_load[len(replica.jobs)].pop(replica.number, None)

    def _look(self) -> None:
        """Autoscale: compare the number of replicas with the number that is needed."""
        scale = self.fleet.autoscale
        assert scale is not None
        staying = [replica for replica in self._replicas.values() if not replica.is_leaving]
        have = len(staying) + self._num_starting
        need = min(scale.most, max(scale.least, math.ceil(self._num_open / scale.target)))
        for sign, delay in ((1, scale.up_delay), (-1, scale.down_delay)):
            if (need - have) * sign <= 0:
                self._called_for.pop(sign, None)
            elif self.now - self._called_for.setdefault(sign, self.now) >= delay:
                if sign > 0:
                    for _ in range(need - have):
                        self._start_replica()
                else:
                    self._dismiss(sorted(staying, key=lambda r: len(r.jobs))[: have - need])
        self._after(scale.interval, self._look)

    def _dismiss(self, replicas: Sequence[SimulatedReplica]) -> None:
        """Give these replicas no more jobs, and remove each when it is empty."""
        for replica in replicas:
            self._remove_load(replica)
            replica.is_leaving = True
            if not replica.jobs:
                self._drop(replica)
