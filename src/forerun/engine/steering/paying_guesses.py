"""Which guesses of a draft are worth a slot in the target's pass, by what is known before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

from forerun.drafters.calibration import calibrated
from forerun.engine.proposal import Proposal, worthwhile
from forerun.engine.steering.curve import Curve


def lowest_paying(
    chances: Sequence[Sequence[float]],
    size: int,
    token: float,
    passes: Curve,
    drafting: Curve | None = None,
) -> float:
    """The lowest chance that pays for a slot in a pass with `size` tokens besides; inf if none.

    chances: of each guess of each row to be kept.  token: seconds that a token of text is worth.
    drafting: seconds of a draft by its length, where the drafts are still to be made.
    """
    plain = passes(size)
    ranked = sorted((-chance, slot) for row in chances for slot, chance in enumerate(row))
    bar, best, kept, longest = inf, 0.0, 0.0, 0
    for count, (loss, slot) in enumerate(ranked, start=1):
        kept, longest = kept - loss, max(longest, slot + 1)
        cost = passes(size + count) - plain + (0.0 if drafting is None else drafting(longest))
        if kept * token - cost > best:
            bar, best = -loss, kept * token - cost
    return bar


@dataclass(frozen=True)
class Tariff:
    """What the policy knew of costs and chances when the round was planned."""

    token: float  # seconds that a token of text is worth
    passes: Curve  # seconds of a pass by the number of its tokens
    shift: float  # of the log-odds of stated values
    survivals: Sequence[Sequence[float]]  # (R,): by slot of a chain, the chance to be kept;
    # empty where slots are not counted, as in trees
    tries: float  # where no guess pays, the best is scored to learn from it if it pays for this
    # share of its slot; inf: never
    num_others: int = 0  # rows in the pass that nothing is drafted for

    def trim(self, drafts: Sequence[Proposal]) -> tuple[list[Proposal], bool]:
        """The drafts (R,) without guesses that do not pay, and whether they are only a trial."""
        if not any(draft.tokens for draft in drafts):
            return [*drafts], False
        chances = [self._chances(*pair) for pair in zip(drafts, self.survivals, strict=True)]
        num_judged = sum(map(len, chances))
        num_rows = len(drafts) + self.num_others
        size = num_rows + sum(len(draft.tokens) for draft in drafts) - num_judged
        bar, is_trial = lowest_paying(chances, size, self.token, self.passes), False
        if num_judged and bar == inf:
            best = max(max(row, default=0.0) for row in chances)
            slot = self.passes(size + 1) - self.passes(size)
            if best * self.token >= self.tries * slot:
                bar, is_trial = best, True
        pairs = zip(drafts, chances, strict=True)
        return [worthwhile(draft, bar, row) if row else draft for draft, row in pairs], is_trial

    def among(self, asked: Sequence[int]) -> Tariff:
        """The same for drafts of some rows only, by index."""
        survivals = [self.survivals[index] for index in asked]
        num_others = self.num_others + len(self.survivals) - len(asked)
        return replace(self, survivals=survivals, num_others=num_others)

    def _chances(self, draft: Proposal, survivals: Sequence[float]) -> Sequence[float]:
        """How likely each guess is to be kept: by its stated value, or by its slot."""
        if draft.values is not None:
            return [calibrated(value, self.shift) for value in draft.values]
        return survivals[: len(draft.tokens)]
