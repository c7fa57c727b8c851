"""The exact test of a user's code: lists every outcome of its random numbers, with its
probability."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, field, replace

import numpy as np

from forerun.base.arrays import HostArray
from forerun.base.clock import now
from forerun.base.errors import InputError
from forerun.proof.branches import CannotEnumerate, Memory, Path, every_path
from forerun.proof.cases import Case
from forerun.proof.certificate import Finding
from forerun.proof.chance import DOUBLE, FORMATS, NO_RNG, Chance, Precision
from forerun.proof.elsewhere import Elsewhere
from forerun.proof.law import Emission, Prefix, Shape, Step, joint, target_law
from forerun.proof.rounds import Drafted, DrawnAs, InvalidEmission, Round, Verifying

EXACT_LIMIT = 1e-12
"""The largest bias that rounding in float64 can explain."""
NEGLIGIBLE = 1e-13  # code may fail where rounding alone leads it; that its mass is missing counts
FAILED: Prefix = (-1,)
"""Stands for the emission of a round in which the tested code returned something invalid."""
MAX_PATHS = 200_000
"""The most outcomes of a round that are followed; a case with more is sampled."""
REPEATED_PATHS = 32
"""The number of paths that are run twice, to find out whether the code draws random numbers from
elsewhere."""


@dataclass
class Following:
    """Follows the outcomes of code in one case after another, for a limited time.

    elsewhere: replaces global generators.
    precision: of the numbers that random ones were compared with, from which the effect of rounding
    is estimated.
    """

    round: Round
    seconds: float
    elsewhere: Elsewhere = field(default_factory=Elsewhere)
    precision: Precision = field(default_factory=Precision)
    uses: int = 0  # questions that the code asked
    deadline: float = field(init=False)

    def __post_init__(self) -> None:
        """Start the clock of the time limit."""
        self.deadline = now() + self.seconds

    def finding(self, case: Case) -> Finding:
        """The bias of the emitted joint law in one case; raises `CannotEnumerate`."""
        try:
            with self.elsewhere.watched():
                law = joint(self._step(case), case.vocab_size, case.length, case.draft_length)
            found = bias(law, case)
            example = furthest_off(law, case) if found > EXACT_LIMIT else ""
            sure = (EXACT_LIMIT, EXACT_LIMIT, 1.0)
            return Finding(case.name, "exact", found, *sure, example=example)
        except InvalidEmission as fault:
            return Finding(case.name, "exact", 1.0, 0.0, EXACT_LIMIT, 1.0, note=str(fault))

    def _step(self, case: Case) -> Step:
        """One round of the code as a `Step`, including the drawing of the draft."""

        def after(prefix: Prefix, shape: Shape) -> Emission:
            """The law of what one round emits after a prefix, over all outcomes."""
            outcomes = []
            for outcome in self._outcomes(case, prefix, shape):
                outcomes.append(outcome)
                if len(outcomes) > MAX_PATHS:
                    raise CannotEnumerate(f"more than {MAX_PATHS:,} outcomes of a round")
                if now() > self.deadline:
                    raise CannotEnumerate(f"more outcomes than {self.seconds:g} s suffice for")
            again = self._outcomes(case, prefix, shape)
            first = outcomes[: 2 if prefix else REPEATED_PATHS]
            if any(one != other for one, other in zip(first, again, strict=False)):
                if not self.uses:
                    raise InputError(NO_RNG)
                raise CannotEnumerate("randomness other than its rng")
            emitted: dict[tuple[Prefix, Memory], float] = defaultdict(float)
            for tokens, weight in outcomes:
                if tokens != FAILED:
                    emitted[tokens, ()] += weight
            return emitted

        return lambda prefixes, shape, memory: [after(prefix, shape) for prefix in prefixes]

    def _outcomes(self, case: Case, prefix: Prefix, shape: Shape) -> Iterator[tuple[Prefix, float]]:
        """The possible emissions of a round with their probabilities, over all paths.

        A user's drawer may pass hidden state to the verifier, so it is run again on every path. Our
        own drawer keeps no state, so each of its drafts is drawn once.
        """

        def drawn(path: Path) -> tuple[Drafted, float]:
            """Draw one possible draft; returns it with its probability."""
            rng = Chance(path)
            return self.round.drafted(case, prefix, shape, rng), rng.weight

        def whole(path: Path) -> tuple[Prefix, float]:
            """Run a whole round on one path; returns its emission with its probability."""
            rng = Chance(path)
            drafted = self.round.drafted(case, prefix, shape, rng)
            return self._emitted(case, prefix, drafted, rng)

        if not (isinstance(self.round, Verifying) and isinstance(self.round.draw, DrawnAs)):
            yield from every_path(whole)
            return
        for draft, chance in every_path(drawn):

            def judged(
                path: Path, draft: Drafted = draft, chance: float = chance
            ) -> tuple[Prefix, float]:
                return self._emitted(case, prefix, tuple(map(copy, draft)), Chance(path, chance))

            yield from every_path(judged)

    def _emitted(
        self, case: Case, prefix: Prefix, drafted: Drafted, rng: Chance
    ) -> tuple[Prefix, float]:
        """Verify a draft on one path; returns the emitted tokens with the path's probability."""
        before, rng.precision = rng.num_uses, self.precision
        try:
            with self.elsewhere.answered_by(rng):
                emitted = self.round.emitted(case, prefix, drafted, rng)
        except CannotEnumerate:
            raise
        except Exception:
            if rng.weight > NEGLIGIBLE:
                raise
            emitted = FAILED
        self.uses += rng.num_uses - before
        return emitted, rng.weight


def rounded(finding: Finding, length: int, precision: Precision) -> Finding:
    """The finding with a limit that allows for arithmetic of that precision."""
    if precision.bits == DOUBLE or finding.note:
        return finding
    limit = 4.0 * length * 2.0**-precision.bits
    return replace(finding, limit=limit, detectable=limit)


def format_of(precision: Precision) -> str:
    """The name of the number format that was found; "" for float64."""
    return FORMATS.get(precision.bits, "")


def bias(emitted: HostArray, case: Case) -> float:
    """The total variation distance from the target's joint law; missing probability counts in
    full."""
    target = target_law(case.target, case.length)
    return float(np.abs(emitted - target).sum() / 2 + abs(emitted.sum() - 1) / 2)


def furthest_off(emitted: HostArray, case: Case) -> str:
    """The text whose probability is furthest from the target's, with both, in words."""
    target = target_law(case.target, case.length)
    place = np.unravel_index(int(np.abs(emitted - target).argmax()), target.shape)
    text = [int(token) for token in place]
    return (
        f"the text {text} comes with probability {emitted[place]:.4g}, and the target gives it "
        f"{target[place]:.4g}"
    )
