"""The sampled test of a user's code whose outcomes cannot be listed; its error probabilities are
bounded.

For a lossless verifier, the distance of the frequencies of n texts over m cells from their law
exceeds sqrt((m log 2 + log 1/alpha) / 2n) with probability at most alpha (Weissman et al.). A bias
that is larger than this by sqrt(log(1/beta) / 2n) is missed with probability at most beta
(Hoeffding, on the set of cells where the laws differ most). Only texts that the target can emit are
cells: a single other text proves a fault.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from forerun.base.arrays import HostArray
from forerun.base.clock import now
from forerun.proof.cases import Case
from forerun.proof.certificate import Finding
from forerun.proof.elsewhere import kept_as_they_are
from forerun.proof.exact import bias
from forerun.proof.law import Prefix, target_law
from forerun.proof.rounds import InvalidEmission, Round, shape_of

FALSE_ALARM = 1e-6
"""The probability, in each case, that a correct function is rejected."""
MISS = 1e-3
"""The probability that a bias which should be caught is missed."""
SECONDS = 15.0  # of sampling, where nobody says how many texts
SIZES = (1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 1_000_000)
"""The numbers of texts per case to choose from; the largest that fits the time is used."""
TRIED = 50  # texts of each case by which the time is foreseen


@dataclass(frozen=True)
class Budget:
    """A number of texts per case, the smallest bias that it detects, and the time it takes.

    Time is estimated from a few texts of every case, so that one can choose before the work begins.
    """

    samples: int
    seconds: float
    detectable: float

    def __str__(self) -> str:
        """One line with the number of texts, the bias and the time."""
        return f"{self.samples:,} catch {self.detectable:.2g} (about {_duration(self.seconds)})"


def budgets(code: Round, cases: Sequence[Case], seed: int) -> list[Budget]:
    """For several numbers of texts: the smallest bias that each detects, and how long it takes."""
    rng = np.random.default_rng(seed)
    start = now()
    with kept_as_they_are(seed), suppress(InvalidEmission):
        for case in cases:
            for _ in range(TRIED):
                _text(code, case, rng)
    per_text = (now() - start) / TRIED
    largest = max(_num_cells(case) for case in cases)
    return [Budget(size, per_text * size, sum(limits(largest, size))) for size in SIZES]


def affordable(every: Sequence[Budget]) -> Budget:
    """The largest budget that takes at most `SECONDS`."""
    some = [budget for budget in every[:-1] if budget.seconds <= SECONDS]
    return some[-1] if some else every[0]


def limits(num_cells: int, samples: int) -> tuple[float, float]:
    """Return two distances from the target's law: the largest that chance explains, and the
    additional distance from which on a bias is detected."""
    spread = num_cells * math.log(2) + math.log(1 / FALSE_ALARM)
    return math.sqrt(spread / (2 * samples)), math.sqrt(math.log(1 / MISS) / (2 * samples))


def sampled_finding(
    code: Round, case: Case, samples: int, seed: int, turns: Iterable[int]
) -> Finding:
    """Compare the frequencies of texts with the target's joint law, with both error probabilities
    bounded."""
    rng = np.random.default_rng(seed)
    counts = np.zeros((case.vocab_size,) * case.length)
    note = ""
    try:
        with kept_as_they_are(seed):
            for _ in turns:
                counts[_text(code, case, rng)] += 1
    except InvalidEmission as fault:
        return Finding(case.name, "sampled", 1.0, 0.0, 1.0, 1 - MISS, note=str(fault))
    impossible = np.argwhere((counts > 0) & (target_law(case.target, case.length) == 0))
    if len(impossible):
        note = f"emitted {impossible[0].tolist()}, which the target never does"
    limit, margin = limits(_num_cells(case), samples)
    found = bias(counts / samples, case)
    return Finding(case.name, "sampled", found, limit, limit + margin, 1 - MISS, samples, note)


def _text(code: Round, case: Case, rng: np.random.Generator) -> Prefix:
    """Generate a text of the case's length by repeated rounds."""
    prefix: Prefix = ()
    while len(prefix) < case.length:
        drafted = code.drafted(case, prefix, shape_of(case, prefix), rng)
        prefix += code.emitted(case, prefix, drafted, rng)
    return prefix[: case.length]


def _num_cells(case: Case) -> int:
    """The number of texts that the target can emit."""
    law: HostArray = target_law(case.target, case.length)
    return int((law > 0).sum())


def _duration(seconds: float) -> str:
    """A number of seconds in words, at least one second."""
    return f"{max(seconds, 1):.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
