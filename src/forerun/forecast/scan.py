"""Simulates every draft length at every batch size with the same random draws."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from forerun.base.errors import InputError, explain
from forerun.forecast.costs import CostModel
from forerun.forecast.simulator import Simulation, draw_accepted, price
from forerun.theory.arguments import as_count


@dataclass(frozen=True)
class Scan:
    """Simulations by batch, then by draft length, both ascending."""

    by_batch: dict[int, tuple[Simulation, ...]]

    def best(self, batch: int) -> Simulation:
        """The fastest at this batch, the shorter draft on a tie; draft length 0 is plain."""
        return max(self.by_batch[batch], key=lambda run: (run.speedup.mean, -run.draft_length))

    @property
    def batches(self) -> tuple[int, ...]:
        return tuple(self.by_batch)

    @property
    def draft_lengths(self) -> tuple[int, ...]:
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
    """Simulate the grid.  Draft length 0, plain decoding, is always included."""
    lengths = sorted({0, *(as_count("draft_length", k) for k in draft_lengths)})
    sizes = sorted({as_count("batch", b, minimum=1) for b in batches})
    if not sizes:
        raise InputError(explain("There is no batch size to try.", "none", "Pass batches=(1,)."))
    accepted = draw_accepted(acceptance, lengths[-1], rounds=rounds, seed=seed, spread=spread)
    return Scan(
        {b: tuple(price(accepted, costs, draft_length=k, batch=b) for k in lengths) for b in sizes}
    )
