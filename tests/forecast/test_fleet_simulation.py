"""The fleet's simulation against closed forms of queueing theory, and what it says of deaths.

Each statistical test averages independent runs.  Their mean is compared with the closed form at
4.5 standard errors of the runs' own spread: a correct simulation fails with odds of about 1e-3
(Student's t with 19 degrees of freedom), for fixed seeds once and for all.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from forerun.base.errors import InputError
from forerun.forecast.fleet_report import Shared, Size, limits, render
from forerun.forecast.fleet_simulation import Autoscale, Fleet, simulate_fleet

RUNS = 20
ERRORS = 4.5


def erlang_c(servers: int, load: float) -> float:
    """The chance to wait in M/M/c; load: arrivals per mean service time."""
    terms = [load**k / math.factorial(k) for k in range(servers)]
    last = load**servers / math.factorial(servers) * servers / (servers - load)
    return last / (sum(terms) + last)


def erlang_b(servers: int, load: float) -> float:
    """The chance to be turned away in M/M/c/c."""
    terms = [load**k / math.factorial(k) for k in range(servers + 1)]
    return terms[-1] / sum(terms)


def assert_mean(values: list[float], expected: float) -> None:
    error = np.std(values, ddof=1) / math.sqrt(len(values))
    assert abs(np.mean(values) - expected) < ERRORS * error
    assert error < 0.1 * expected  # or else anything would pass


@pytest.mark.parametrize(("replicas", "rows"), [(1, 1), (4, 1), (2, 4), (1, 8)])
def test_equal_speeds_are_a_queue_with_so_many_servers(replicas: int, rows: int) -> None:
    servers, load = replicas * rows, 0.75 * replicas * rows
    fleet = Fleet(replicas, load, [0.01], rows=rows, answer_tokens=100)  # a second per answer
    outcomes = [simulate_fleet(fleet, num_requests=1500, seed=s) for s in range(RUNS)]
    chance = erlang_c(servers, load)
    assert_mean([float(np.mean(np.array(o.waits) > 0)) for o in outcomes], chance)
    assert_mean([float(np.mean(o.waits)) for o in outcomes], chance / (servers - load))
    assert_mean([float(np.mean(o.totals)) for o in outcomes], chance / (servers - load) + 1)
    assert_mean([o.busy for o in outcomes], 0.75)


def test_a_replica_that_slows_down_shares_its_time() -> None:
    """A replica whose tokens take b times as long among b answers is M/M/1 processor sharing."""
    rows = 200
    fleet = Fleet(1, 0.6, [0.01 * b for b in range(1, rows + 1)], rows=rows)
    outcomes = [simulate_fleet(fleet, num_requests=1500, seed=s) for s in range(RUNS)]
    assert_mean([float(np.mean(o.totals)) for o in outcomes], 1 / (1 - 0.6))
    assert all(max(o.waits) == 0 for o in outcomes)


def test_without_a_queue_erlang_b_are_rejected() -> None:
    fleet = Fleet(2, 3.0, [0.01], rows=2, max_queue=0)
    outcomes = [simulate_fleet(fleet, num_requests=1500, seed=s) for s in range(RUNS)]
    assert_mean([o.num_rejected / 1500 for o in outcomes], erlang_b(4, 3.0))
    assert all(o.num_answered + o.num_rejected == 1500 for o in outcomes)


def test_replicas_are_up_as_long_as_they_live_between_starts() -> None:
    """Busy rows of a saturated fleet: each replica lives 50 seconds and takes 10 to come back."""
    fleet = Fleet(1, 50.0, [0.01], rows=1, start_seconds=10, death_rate=1 / 50)
    outcomes = [simulate_fleet(fleet, num_requests=2000, seed=s) for s in range(RUNS)]
    assert_mean([o.busy_seconds / o.seconds for o in outcomes], 50 / 60)


@pytest.mark.parametrize("failover", ["exact", "again"])
def test_exact_failover_breaks_nothing_and_wastes_nothing(failover: str) -> None:
    calm = simulate_fleet(Fleet(4, 8.0, [0.01], rows=4), num_requests=4000, seed=3)
    fleet = Fleet(4, 8.0, [0.01], rows=4, death_rate=1 / 20, detect_seconds=0.5, failover=failover)  # type: ignore[arg-type]
    outcome = simulate_fleet(fleet, num_requests=4000, seed=3)
    assert outcome.num_answered == 4000
    assert outcome.num_deaths > 20
    assert min(outcome.pauses) >= 0.5
    work = calm.busy_seconds  # the same answers, undisturbed
    if failover == "exact":
        assert outcome.num_broken == 0
        assert outcome.busy_seconds == pytest.approx(work, rel=1e-9)
    else:
        assert outcome.num_broken == len(outcome.pauses) > 0
        assert outcome.busy_seconds > 1.02 * work


@pytest.mark.parametrize(("prompt_tokens", "seconds"), [(0, 0.5), (100, 1.0)])
def test_a_text_is_read_again_where_it_goes_on(prompt_tokens: int, seconds: float) -> None:
    """Reading costs half a token per token.  A text that is cut off has 100 tokens in the mean (its
    length is exponential), so a death costs half a second, and half a second more for a prompt
    of 100; the mean of about 100 deaths is 5 standard errors inside of these bounds."""
    options = {"rows": 1, "prompt_tokens": prompt_tokens, "prompt_cost": 0.5}
    calm = simulate_fleet(Fleet(4, 1.0, [0.01], **options), num_requests=2000, seed=1)
    moved = Fleet(4, 1.0, [0.01], **options, death_rate=1 / 20)
    outcome = simulate_fleet(moved, num_requests=2000, seed=1)
    extra = (outcome.busy_seconds - calm.busy_seconds) / len(outcome.pauses)
    assert seconds - 0.25 < extra < seconds + 0.25


def test_autoscaling_follows_a_surge_and_comes_back() -> None:
    scale = Autoscale(2, 12, target=4, interval=1, up_delay=5, down_delay=20)
    options = {"rows": 8, "start_seconds": 5.0, "surge": 5.0}
    fleet = Fleet(12, 10.0, [0.01], **options, autoscale=scale)
    outcome = simulate_fleet(fleet, num_requests=8_000, seed=0)
    mean = outcome.replica_seconds / outcome.seconds
    assert outcome.num_answered == 8_000
    assert 2 < mean < 7  # without coming back it would be more than 8
    assert outcome.most_replicas == 12
    fixed = simulate_fleet(Fleet(2, 10.0, [0.01], **options), num_requests=8_000, seed=0)
    assert outcome.percentile("waits", 0.9) < 0.1 * fixed.percentile("waits", 0.9)


def test_the_smallest_limit_comes_first() -> None:
    fleet = Fleet(10, 10.0, [0.01], start_seconds=20, death_rate=1 / 72_000)
    outcome = simulate_fleet(fleet, num_requests=500)
    size = Size(fleet, outcome, Shared(ingress_seconds=1e-4, weights_gb=2, store_gbps=10))
    assert [round(limit.replicas) for limit in limits(size)] == [100, 100, 3600]
    assert size.ingress_cores == pytest.approx(0.1)  # 1,000 tokens a second
    assert size.deaths_per_day == pytest.approx(12)
    assert "3,600 replicas: some replica is always starting" in render([size])


@pytest.mark.parametrize("wrong", [{"replicas": 0}, {"rate": -1}, {"token_seconds": []}])
def test_nonsense_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InputError, match="Received"):
        Fleet(**{"replicas": 1, "rate": 1.0, "token_seconds": [0.01], **wrong})  # type: ignore[arg-type]
