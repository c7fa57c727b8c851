"""Reports fleets of several sizes in a table, and the limit that a growing fleet meets first."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from forerun.forecast.fleet_simulation import Fleet, FleetOutcome

DAY = 86_400.0


@dataclass(frozen=True)
class Shared:
    """The parts of a fleet that all replicas share, and the load of one replica on them."""

    ingress_seconds: float  # seconds of a core per token that passes the ingress
    weights_gb: float  # gigabytes that a starting replica loads
    store_gbps: float  # gigabytes per second from the store of weights


@dataclass(frozen=True)
class Limit:
    """A number of replicas at which something breaks, and a description of what breaks."""

    replicas: float
    what: str


@dataclass(frozen=True)
class Size:
    """A fleet of one size, simulated."""

    fleet: Fleet
    outcome: FleetOutcome
    shared: Shared

    @property
    def tokens_per_second(self) -> float:
        """Tokens that all replicas emit per second."""
        return self.fleet.rate * self.fleet.answer_tokens

    @property
    def ingress_cores(self) -> float:
        """Cores that the ingress keeps busy."""
        return self.tokens_per_second * self.shared.ingress_seconds

    @property
    def deaths_per_day(self) -> float:
        """The expected number of replicas that die in a day."""
        return self.fleet.replicas * self.fleet.death_rate * DAY

    @property
    def cold_start(self) -> float:
        """Seconds until all replicas are ready if they start at once and load from one store."""
        loading = self.fleet.replicas * self.shared.weights_gb / self.shared.store_gbps
        return max(self.fleet.start_seconds, loading)


def limits(size: Size) -> list[Limit]:
    """The limits that the fleet meets as it grows at constant load per replica, smallest first."""
    fleet, shared = size.fleet, size.shared
    per_replica = size.ingress_cores / fleet.replicas
    result = []
    if per_replica:
        text = "one ingress process passes on no more tokens: run several behind a balancer"
        result.append(Limit(1 / per_replica, text))
    if shared.weights_gb and fleet.start_seconds:
        most = fleet.start_seconds * shared.store_gbps / shared.weights_gb
        text = "starting all at once waits for the store of the weights: keep copies on the nodes"
        result.append(Limit(most, text))
    if fleet.death_rate and fleet.start_seconds:
        most = 1 / (fleet.death_rate * fleet.start_seconds)
        text = "some replica is always starting anew: keep spare ones"
        result.append(Limit(most, text))
    return sorted(result, key=lambda limit: limit.replicas)


def render(sizes: Sequence[Size]) -> str:
    """The report as text: a line for each size, then the limits of the last one."""
    return "\n".join([*_table(sizes), "", *_in_words(sizes[-1])])


def as_dict(sizes: Sequence[Size]) -> dict[str, Any]:
    """All numbers of the table, unrounded, as dictionaries and lists."""
    return {
        "sizes": [_size_as_dict(size) for size in sizes],
        "limits": [asdict(limit) for limit in limits(sizes[-1])],
    }


def _size_as_dict(size: Size) -> dict[str, Any]:
    outcome, fleet = size.outcome, size.fleet
    shares = {
        f"{name}_p{share:.0%}".rstrip("%"): _or_none(outcome.percentile(name, share))
        for name in ("waits", "totals", "pauses")
        for share in (0.5, 0.99)
    }
    return {
        "replicas": fleet.replicas,
        "requests_per_second": fleet.rate,
        "tokens_per_second": size.tokens_per_second,
        "busy": outcome.busy,
        **shares,
        "answered": outcome.num_answered,
        "rejected": outcome.num_rejected,
        "broken": outcome.num_broken,
        "deaths": outcome.num_deaths,
        "most_waiting": outcome.most_waiting,
        "most_replicas": outcome.most_replicas,
        "replica_seconds": outcome.replica_seconds,
        "deaths_per_day": size.deaths_per_day,
        "ingress_cores": size.ingress_cores,
        "cold_start_seconds": size.cold_start,
    }


def _table(sizes: Sequence[Size]) -> Iterator[str]:
    yield (
        f"{'':>8}  {'':>10}  {'':>9}  {'':>4}  {'wait, s':>13}  {'answer, s':>13}  "
        f"{'':>8}  {'pause':>7}  {'':>6}  {'ingress':>7}  {'cold'}"
    )
    yield (
        f"{'replicas':>8}  {'requests/s':>10}  {'tokens/s':>9}  {'busy':>4}  "
        f"{'p50':>6} {'p99':>6}  {'p50':>6} {'p99':>6}  {'rejected':>8}  {'p99, s':>7}  "
        f"{'broken':>6}  {'cores':>7}  {'start, s'}"
    )
    for size in sizes:
        outcome, fleet = size.outcome, size.fleet
        wait = f"{_seconds(outcome, 'waits', 0.5)} {_seconds(outcome, 'waits', 0.99)}"
        total = f"{_seconds(outcome, 'totals', 0.5)} {_seconds(outcome, 'totals', 0.99)}"
        yield (
            f"{fleet.replicas:>8,}  {fleet.rate:>10,.1f}  {size.tokens_per_second:>9,.0f}  "
            f"{outcome.busy:>4.0%}  {wait}  {total}  {outcome.num_rejected:>8,}  "
            f"{_seconds(outcome, 'pauses', 0.99):>7}  {outcome.num_broken:>6,}  "
            f"{size.ingress_cores:>7.2f}  {size.cold_start:>8.0f}"
        )


def _seconds(outcome: FleetOutcome, name: Any, share: float) -> str:
    value = outcome.percentile(name, share)
    return f"{'-':>6}" if math.isnan(value) else f"{value:>6.2f}"


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value


def _in_words(size: Size) -> Iterator[str]:
    outcome = size.outcome
    if size.fleet.autoscale is not None:
        mean = outcome.replica_seconds / outcome.seconds
        yield f"Autoscaling: {mean:.1f} replicas in the mean, {outcome.most_replicas} at most."
    if outcome.num_deaths:
        yield (
            f"{outcome.num_deaths:,} replicas died in {outcome.seconds:,.0f} simulated seconds and "
            f"{len(outcome.pauses):,} answers with them; {outcome.num_broken:,} broke for clients."
        )
    elif size.deaths_per_day:
        yield f"Deaths: {size.deaths_per_day:.1f} a day, none in the simulated time."
    lines = limits(size)
    if lines:
        yield "What breaks first as the fleet grows at this load:"
    for limit in lines:
        yield f"  {limit.replicas:>9,.0f} replicas: {limit.what}"
