"""Which guesses of a draft are worth a slot in the target's pass, by what is known before it."""

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
    """The lowest chance that pays for a slot in a pass with `size` tokens besides; inf if none.

    chances: of each guess of each row to be kept.  token: seconds that a token of text is worth.
    drafting: seconds of an ask by its size (`ledger.size_of`), where the drafts are still to be
    made.
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
    """The least chance that the last of 1, 2, ... guesses in a row must have for more to pay, as
    many as pay best: a pass of some size costs much more than one of a token less, and those after
    it hardly more.

    scoring: tokens that could be made while 1, 2, ... guesses are scored.  level: tokens that could
    be made while one more is guessed.
    """
    least, promised = [], list(accumulate(USUAL**count for count in range(1, len(scoring))))
    for last, scored in enumerate(scoring[:-1]):
        costs = [cost - scored + level * n for n, cost in enumerate(scoring[last + 1 :], start=1)]
        least.append(min(cost / gain for cost, gain in zip(costs, promised, strict=False)))
    return least


@dataclass(frozen=True)
class Tariff:
    """The costs and chances that were known when the round was planned."""

    token: float  # seconds that a token of text is worth
    passes: Curve  # seconds of a pass by the number of its tokens
    shift: float  # of the log-odds of stated chances
    survivals: Sequence[Sequence[float]]  # (R,): by depth, the chance that a guess is kept whose
    # drafter states nothing
    tries: float = inf  # where no guess pays, the best is scored to learn from it if it pays for
    # this share of its slot
    num_others: int = 0  # rows in the pass that nothing is drafted for

    def trim(self, drafts: Sequence[Proposal]) -> list[Proposal]:
        """The drafts (R,) without the guesses that do not pay."""
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
        """The tariff for drafts of some rows only, by index."""
        survivals = [self.survivals[index] for index in asked]
        num_others = self.num_others + len(self.survivals) - len(asked)
        return replace(self, survivals=survivals, num_others=num_others)


def chances_of(draft: Proposal, shift: float, survivals: Sequence[float]) -> Sequence[float]:
    """The chance of each guess to be kept: as the drafter stated it, or else by depth."""
    if draft.values is not None:  # whoever combined several drafters has calibrated them
        is_raw = draft.parts is None
        return [calibrated(value, shift) for value in draft.values] if is_raw else draft.values
    if draft.tree is None:
        return survivals[: len(draft.tokens)]
    widths = Counter(draft.tree.depths)
    return [survivals[depth] / widths[depth] for depth in draft.tree.depths]
