"""Decides which guesses of a draft are worth scoring, from prices and chances known beforehand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import inf

from forerun.drafters.calibration import calibrated
from forerun.engine.proposal import Proposal, worthwhile
from forerun.engine.steering.measurements import Curve

USUAL = 0.8  # the chance of a guess whose line was worth going on with, if all before it are kept


def lowest_paying(
    chances: Sequence[Sequence[float]],
    size: int,
    token: float,
    passes: Curve,
    drafting: Curve | None = None,
) -> float:
    """The lowest chance of being kept with which a guess is still worth scoring; inf if none is.

    chances: each guess's chance of being kept, by row.
    size: the other tokens in the pass.
    token: seconds that a token of text is worth.
    drafting: seconds of a drafter's call by its size (`ledger.size_of`), if the drafts are still to
    be made.
    """
    plain, num_asked = passes(size), sum(map(bool, chances))
    ranked = sorted((-chance, slot) for row in chances for slot, chance in enumerate(row))
    bar, best, kept, longest = inf, 0.0, 0.0, 0
    for count, (loss, slot) in enumerate(ranked, start=1):
        kept, longest = kept - loss, max(longest, slot + 1)
        cost = (
            passes(size + count)
            - plain
            + (0.0 if drafting is None else drafting(num_asked * (longest + 1)))
        )
        if kept * token - cost > best:
            bar, best = -loss, kept * token - cost
    return bar


def going_on(scoring: Sequence[float], level: float) -> list[float]:
    """The least chances with which it pays to guess on: entry i is for a line of i + 1 guesses, and
    is the chance that its last guess must have of being kept.

    A pass may cost much more with one token more, and hardly more with several, so the number of
    further guesses is the one that pays best.

    scoring: tokens that could be made in the time of scoring 1, 2, ... guesses.
    level: tokens that could be made in the time of drafting one more guess.
    """
    least, promised = [], list(accumulate(USUAL**count for count in range(1, len(scoring))))
    for last, scored in enumerate(scoring[:-1]):
        costs = [cost - scored + level * n for n, cost in enumerate(scoring[last + 1 :], start=1)]
        least.append(min(cost / gain for cost, gain in zip(costs, promised, strict=False)))
    return least


@dataclass(frozen=True)
class Tariff:
    """The prices and chances that a plan was made with; they decide which guesses are scored."""

    token: float  # seconds that a token of text is worth
    passes: Curve  # seconds of a pass by the number of its tokens
    shift: float  # of the log-odds of stated chances
    survivals: Sequence[Sequence[float]]  # (R,): by depth, the chance that a guess is kept whose
    # drafter states nothing
    tries: float = inf  # where no guess pays, the best is scored to learn from it if it pays for
    # this share of its slot
    num_others: int = 0  # rows in the pass that nothing is drafted for

    def trim(self, drafts: Sequence[Proposal]) -> list[Proposal]:
        """The drafts (R,) without the guesses that are not worth scoring."""
        pairs = zip(drafts, self.survivals, strict=True)
        chances = [chances_of(draft, self.shift, own) for draft, own in pairs]
        best = max((max(row) for row in chances if row), default=0.0)
        if best == 0:
            return list(drafts)
        size = len(drafts) + self.num_others
        bar = lowest_paying(chances, size, self.token, self.passes)
        slot = self.passes(size + 1) - self.passes(size)
        if bar == inf and best * self.token >= self.tries * slot:
            bar = best
        return [worthwhile(draft, bar, row) for draft, row in zip(drafts, chances, strict=True)]

    def among(self, asked: Sequence[int]) -> Tariff:
        """The tariff for drafts of only the rows with these indices."""
        survivals = [self.survivals[index] for index in asked]
        num_others = self.num_others + len(self.survivals) - len(asked)
        return replace(self, survivals=survivals, num_others=num_others)


def chances_of(draft: Proposal, shift: float, survivals: Sequence[float]) -> Sequence[float]:
    """Each guess's chance of being kept: as the drafter stated it, or else estimated by depth."""
    if draft.values is not None:  # whoever combined several drafters has calibrated them
        is_raw = draft.parts is None
        return [calibrated(value, shift) for value in draft.values] if is_raw else draft.values
    if draft.tree is None:
        return survivals[: len(draft.tokens)]
    widths = Counter(draft.tree.depths)
    return [survivals[depth] / widths[depth] for depth in draft.tree.depths]
