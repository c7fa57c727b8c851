"""Closed forms for the gain of a drafter, without running it.

* overlap: how often one drafted token survives, from whole rows of probabilities, per rule.
* rounds: from survival at each position to tokens per round.
* speed: from tokens per round and measured costs to a speed-up and the draft length to use.

Everything is float64 NumPy and exact; `forerun.forecast` adds randomness and machines.
"""

from forerun.theory.overlap import (
    acceptance,
    gumbel_acceptance,
    gumbel_bounds,
    match_acceptance,
    point_mass_acceptance,
    total_variation,
    transport_bound,
)
from forerun.theory.rounds import (
    accepted_length_law,
    block_survival,
    difficulty_rates,
    ratio_survival,
    survival,
    tokens_per_round,
)
from forerun.theory.speed import BestDraftLength, best_draft_length, extension_pays, speedup

__all__ = [
    "BestDraftLength",
    "acceptance",
    "accepted_length_law",
    "best_draft_length",
    "block_survival",
    "difficulty_rates",
    "extension_pays",
    "gumbel_acceptance",
    "gumbel_bounds",
    "match_acceptance",
    "point_mass_acceptance",
    "ratio_survival",
    "speedup",
    "survival",
    "tokens_per_round",
    "total_variation",
    "transport_bound",
]


def __dir__() -> list[str]:
    """The public names of this package."""
    return __all__
