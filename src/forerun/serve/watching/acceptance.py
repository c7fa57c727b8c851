"""Raises an alarm if drafts are accepted unusually often or rarely: garbled output lowers
acceptance, loops raise it.

An answer is compared with earlier answers on this server with the same drafter, rule and kind of
sampling. Acceptance differs from text to text, so each answer's rate is modelled as drawn from a
beta distribution fitted to the earlier answers. An answer is unusual if its count has a probability
below `RARE` on one side, which happens by chance to one answer in `2 / RARE`. An alarm needs
`NEEDED` unusual ones among the last `WINDOW`, which happens by chance once in millions.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import exp, lgamma
from statistics import fmean

from forerun.engine.results import Direction

RARE = 5e-4
LEAST_JUDGED = 16
"""The fewest judged guesses of an answer whose acceptance is compared; fewer tell nothing."""
LEAST_ANSWERS, MOST_ANSWERS = 64, 512
"""The fewest and the most earlier answers from which the usual acceptance is computed."""
WINDOW, NEEDED = 20, 3
"""An alarm is raised if NEEDED of the last WINDOW answers were unusual."""
ADAPTS = 64
"""If an alarm lasts for this many answers, their acceptance becomes the usual one, because the
requests have probably changed."""
LEAST_SPREAD = 0.05
"""The smallest assumed standard deviation of acceptance rates between answers; equal requests alone
would make it 0."""
MOST_COUNTED = 400
"""The most judged guesses of an answer that are counted, to bound the cost of a sum."""
MOST_KINDS = 32

DIRECTIONS: tuple[Direction, ...] = ("low", "high")


@dataclass
class _Kind:
    """The answers of one kind, which are compared with one another."""

    usual: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=MOST_ANSWERS))
    marks: deque[Direction | None] = field(default_factory=lambda: deque(maxlen=WINDOW))
    num_since_alarm: int = 0

    @property
    def alarm(self) -> Direction | None:
        """The direction in which enough recent answers were unusual; None if there are not
        enough."""
        for direction in DIRECTIONS:
            if self.marks.count(direction) >= NEEDED:
                return direction
        return None


class Acceptance:
    """Learns the usual acceptance of a model's drafters, and notices unusual answers."""

    def __init__(self) -> None:
        self._kinds: dict[str, _Kind] = {}

    @property
    def alarm(self) -> Direction | None:
        """The direction in which recent acceptance was unusual, far too low or far too high; None
        if it was not."""
        return next((alarm for kind in self._kinds.values() if (alarm := kind.alarm)), None)

    def judge(self, name: str, judged: int, accepted: int) -> Direction | None:
        """The direction in which one answer is unusual for its kind; None if it is not. Learns from
        the answer."""
        if judged < LEAST_JUDGED:
            return None
        if name not in self._kinds and len(self._kinds) >= MOST_KINDS:
            return None
        kind = self._kinds.setdefault(name, _Kind())
        mark: Direction | None = None
        if len(kind.usual) >= LEAST_ANSWERS:
            mark = outside(kind.usual, judged, accepted)
        kind.marks.append(mark)
        if mark is None:
            kind.usual.append((judged, accepted))
        kind.num_since_alarm = 0 if kind.alarm is None else kind.num_since_alarm + 1
        if kind.num_since_alarm >= ADAPTS:
            self._kinds[name] = _Kind()
        return mark


def outside(usual: deque[tuple[int, int]], judged: int, accepted: int) -> Direction | None:
    """The direction in which a count of accepted guesses is unusual; None if it is not.

    usual: (judged, accepted) of earlier answers.
    """
    rates = [one_accepted / one_judged for one_judged, one_accepted in usual]
    mean = min(max(fmean(rates), 0.01), 0.99)
    by_luck = fmean(rate * (1 - rate) / n for rate, (n, _) in zip(rates, usual, strict=True))
    most = 0.95 * mean * (1 - mean)  # a beta distribution cannot spread further
    variance = fmean(rate * rate for rate in rates) - fmean(rates) ** 2 - by_luck
    spread = min(max(variance, LEAST_SPREAD**2), most)
    weight = mean * (1 - mean) / spread - 1
    alpha, beta = mean * weight, (1 - mean) * weight
    if judged > MOST_COUNTED:
        judged, accepted = MOST_COUNTED, round(accepted * MOST_COUNTED / judged)
    if accepted < mean * judged:
        return "low" if _tail(judged, accepted, alpha, beta) < RARE else None
    return "high" if _tail(judged, judged - accepted, beta, alpha) < RARE else None


def _tail(n: int, most: int, alpha: float, beta: float) -> float:
    """The probability of at most `most` successes in n trials, if their rate is drawn from a beta
    distribution."""
    whole = lgamma(n + 1) + lgamma(alpha + beta) - lgamma(alpha) - lgamma(beta)
    whole -= lgamma(n + alpha + beta)
    return sum(
        exp(whole + lgamma(k + alpha) + lgamma(n - k + beta) - lgamma(k + 1) - lgamma(n - k + 1))
        for k in range(most + 1)
    )
