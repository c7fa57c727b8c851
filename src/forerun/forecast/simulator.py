"""Simulates rounds without models: the speed-up with its uncertainty, for one setting or a grid.

Acceptance does not depend on the batch, only the cost of a pass does.  So a simulation draws the
accepted lengths of one request's rounds, and the batch enters through the cost model alone.

The draws do not depend on the draft length either: with the same seed every K uses the same
draws, cut to K.  So curves over K are smooth, and noise does not choose the best K.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from forerun.base.errors import InputError, explain, shown_by
from forerun.forecast.costs import CostModel, PassCost
from forerun.theory.arguments import as_count, as_rates
from forerun.theory.rounds import beta_parameters, conditional_rates

Z_95 = 1.959964
"""The half width, in standard errors, of an interval with 95% of a normal law."""


class Estimate(NamedTuple):
    """A mean and the ends of its 95% interval (normal approximation)."""

    mean: float
    low: float
    high: float

    def times(self, factor: float) -> Estimate:
        """The estimate of `factor` times the quantity; the factor must be positive."""
        return Estimate(self.mean * factor, self.low * factor, self.high * factor)


@dataclass(frozen=True, eq=False)
class Simulation:
    """The simulated rounds of one setting.  Costs are in seconds, or in passes if relative."""

    draft_length: int
    batch: int
    round_cost: float
    plain_cost: float  # of one step of plain decoding at this batch
    tokens_per_round: Estimate
    accepted: NDArray[np.int64] = field(repr=False)  # (R,) accepted drafts of each round

    @property
    def speedup(self) -> Estimate:
        """The factor by which decoding gets faster than plain decoding at this batch size."""
        return self.tokens_per_round.times(self.plain_cost / self.round_cost)

    @property
    def throughput(self) -> Estimate:
        """Tokens per unit of time, over the whole batch."""
        return self.tokens_per_round.times(self.batch / self.round_cost)

    @property
    def latency(self) -> Estimate:
        """The mean time between two tokens of one request."""
        mean, low, high = (self.round_cost / tokens for tokens in self.tokens_per_round)
        return Estimate(mean, high, low)


@shown_by("fr.simulate(0.8, draft_length=4, draft_cost=0.05)")
def simulate(
    acceptance: float | Sequence[float],
    *,
    draft_length: int,
    draft_cost: float | PassCost,
    target_cost: float | Sequence[float] | PassCost = 1.0,
    overhead: float = 0.0,
    batch: int = 1,
    rounds: int = 20_000,
    seed: int = 0,
    spread: float = 0.0,
) -> Simulation:
    """Draw `rounds` rounds and compute their cost; `CostModel` explains the cost arguments.

    acceptance: one rate, or one per position, given that the position is reached.  spread: the
    standard deviation of a rate shared by the drafts of a round (see `difficulty_rates`).
    """
    costs = CostModel(draft_cost, target_cost, overhead)
    accepted = draw_accepted(acceptance, draft_length, rounds=rounds, seed=seed, spread=spread)
    return price(accepted, costs, draft_length=draft_length, batch=batch)


@shown_by("fr.replay([3, 0, 4], recorded_length=4, draft_cost=0.05)")
def replay(
    accepted: Sequence[int] | NDArray[np.int64],
    *,
    recorded_length: int,
    draft_length: int | None = None,
    draft_cost: float | PassCost,
    target_cost: float | Sequence[float] | PassCost = 1.0,
    overhead: float = 0.0,
    batch: int = 1,
) -> Simulation:
    """Compute the cost of rounds that really ran, with drafts of `recorded_length`.

    accepted: the accepted length of each round.  draft_length: cuts each round to fewer drafts,
    which gives what any rule that decides left to right (`match`, `ratio`) would have accepted; a
    longer one was not observed and raises InputError.  Neighbouring rounds of real text are
    correlated, which the interval takes into account.
    """
    longest = as_count("recorded_length", recorded_length)
    length = longest if draft_length is None else as_count("draft_length", draft_length)
    lengths = np.asarray(accepted)
    if lengths.ndim != 1 or lengths.size == 0 or lengths.dtype.kind not in "iu":
        received = f"shape {lengths.shape} of {lengths.dtype}"
        cure = "Pass num_accepted of each round, (R,)."
        raise InputError(explain("A recording is a list of counts.", received, cure))
    if lengths.min() < 0 or lengths.max() > longest:
        received = f"{lengths.min()} to {lengths.max()} with recorded_length={longest}"
        cure = "Count accepted drafts, without the extra token."
        raise InputError(explain("Accepted lengths go from 0 to K.", received, cure))
    if length > longest:
        cure = f"Record with longer drafts, or ask for at most {longest}."
        raise InputError(explain("Nothing is known past the recorded drafts.", length, cure))
    costs = CostModel(draft_cost, target_cost, overhead)
    lags = round(lengths.size ** (1 / 3))
    return price(lengths.astype(np.int64), costs, draft_length=length, batch=batch, lags=lags)


def draw_accepted(
    acceptance: Any, draft_length: int, *, rounds: int, seed: int = 0, spread: float = 0.0
) -> NDArray[np.int64]:
    """Draw the accepted drafts (R,) of each round, by one uniform number against the survival."""
    rates = conditional_rates(acceptance, draft_length)
    rng = np.random.default_rng(as_count("seed", seed))
    coins = rng.random(as_count("rounds", rounds, minimum=1))
    survival: Any = 1.0
    if as_rates("spread", spread) > 0:
        if np.ndim(acceptance) > 0:
            cure = "Rates by position already tell easy rounds from hard ones: leave spread at 0."
            raise InputError(explain("spread needs a single acceptance rate.", spread, cure))
        rates = [rng.beta(*beta_parameters(float(acceptance), spread), len(coins))] * len(rates)
    accepted = np.zeros(len(coins), dtype=np.int64)
    for rate in rates:
        survival = survival * rate
        accepted += coins < survival
    return accepted


def price(
    accepted: NDArray[np.int64],
    costs: CostModel,
    *,
    draft_length: int,
    batch: int = 1,
    lags: int = 0,
) -> Simulation:
    """The simulation of rounds (R,) cut to `draft_length`, with their costs at a batch size.

    lags: rounds up to this distance may be correlated.
    """
    batch = as_count("batch", batch, minimum=1)
    kept = np.minimum(accepted, draft_length)
    return Simulation(
        draft_length=draft_length,
        batch=batch,
        round_cost=costs.round(batch, draft_length),
        plain_cost=costs.plain(batch),
        tokens_per_round=mean_interval(kept + 1.0, 1.0, draft_length + 1.0, lags=lags),
        accepted=kept,
    )


def mean_interval(
    values: NDArray[np.float64], smallest: float, largest: float, *, lags: int = 0
) -> Estimate:
    """The mean of a series (R,) with its 95% interval, clipped to the possible range.

    Values up to `lags` apart may be correlated: their covariances have falling (Bartlett) weights,
    which keeps the variance positive.  smallest, largest: the possible range.
    """
    n, mean = len(values), float(values.mean())
    if n == 1:
        return Estimate(mean, smallest, largest)
    centred, lags = values - mean, min(lags, n - 1)
    variance = float(centred @ centred)
    for lag in range(1, lags + 1):
        variance += 2 * (1 - lag / (lags + 1)) * float(centred[lag:] @ centred[:-lag])
    half = Z_95 * math.sqrt(max(variance, 0.0) / (n - 1) / n)
    return Estimate(mean, max(mean - half, smallest), min(mean + half, largest))


@dataclass(frozen=True)
class Scan:
    """Simulations by batch, then by draft length, both ascending."""

    by_batch: dict[int, tuple[Simulation, ...]]

    def best(self, batch: int) -> Simulation:
        """The fastest simulation at a batch size, the shorter draft on a tie; draft length 0 is
        plain decoding."""
        return max(self.by_batch[batch], key=lambda run: (run.speedup.mean, -run.draft_length))

    @property
    def batches(self) -> tuple[int, ...]:
        """The batch sizes, ascending."""
        return tuple(self.by_batch)

    @property
    def draft_lengths(self) -> tuple[int, ...]:
        """The draft lengths, ascending, 0 included."""
        return tuple(run.draft_length for run in next(iter(self.by_batch.values())))


def scan(
    acceptance: Any,
    costs: CostModel,
    *,
    draft_lengths: Iterable[int],
    batches: Iterable[int] = (1,),
    rounds: int = 20_000,
    seed: int = 0,
    spread: float = 0.0,
) -> Scan:
    """Simulate every draft length at every batch size, with one set of random draws.

    Draft length 0, plain decoding, is always included.  The other arguments are those of
    `simulate`.
    """
    lengths = sorted({0, *(as_count("draft_length", k) for k in draft_lengths)})
    sizes = sorted({as_count("batch", b, minimum=1) for b in batches})
    if not sizes:
        raise InputError(explain("There is no batch size to try.", "none", "Pass batches=(1,)."))
    accepted = draw_accepted(acceptance, lengths[-1], rounds=rounds, seed=seed, spread=spread)
    return Scan(
        {b: tuple(price(accepted, costs, draft_length=k, batch=b) for k in lengths) for b in sizes}
    )
