"""A sequential test with e-values: wealth from bets that tokens do not follow their stated law.

Before each token, every *expert* changes the law p to a law q. When the token x is seen, the
expert's wealth is multiplied by q(x) / p(x). If x follows p, the expected factor is 1, whatever was
seen before. So wealth is a martingale that starts at 1, and by Ville's inequality it *ever* exceeds
1 / alpha with a probability of at most alpha. The same holds for a weighted mean of such wealths.
So one may look after every token, stop at any time, and continue later.

Each condition has its own wealth, for faults that show only there. Conditions whose law has a
single interpretation also share a pool, for faults that show everywhere. A condition with several
valid interpretations counts by the smallest of their wealths. The weighted mean of all this is the
evidence of the audit.

Slack: a server may compute the same law in different ways that round differently. With |p' / p - 1|
<= slack the expected factor is at most 1 + slack * sum p |q / p - 1|, and every factor is divided
by that.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np

from forerun.audit.bins import Bins
from forerun.audit.conditions import Condition
from forerun.audit.prompts import Prompt
from forerun.base.arrays import HostArray

TILTS = (-1.6, -0.8, -0.4, -0.2, 0.2, 0.4, 0.8, 1.6)
"""Fixed experts: each makes one feature likelier or less likely by this much in log-odds."""
LEARNED = (0.5, 1.0)
"""Learning experts: each tilts all features by this share of the tilts fitted to earlier tokens."""
RIDGE = 10.0
"""Shrinks the tilts of the learning experts, as if this many more tokens had shown no fault."""
STEEPEST = 2.0
"""The most that learning experts tilt by, in log-odds."""
MIXTURES = (0.05, 0.2, 0.5)
"""Mixing experts: the share of another law, such as that of the place before."""
BELIEFS = (0.3, 0.8)
"""Simulating experts: the share of the law that a known mechanism would have."""
LEAST_BET = 1e-5
"""The least probability that every expert gives to a token, so that no expert is ruined by a token
whose stated probability is 0."""
STRENGTHS = (4.0, 25.0)
"""Counting experts compare how often a token came at such places with how often it should have.
Each adds one of these numbers to both counts, so that a few tokens change little."""
POOLED = 0.5
"""The share of wealth that the pool starts with; the conditions have equal parts of the rest."""
LEAST_SPENT = 24
"""The tokens to spend on every condition, and on every prompt, before one is preferred."""
HOPED, BEGUN = 1.0, 100.0
"""Every condition and prompt is credited in advance with this many nats won and this many tokens
spent."""


@dataclass(frozen=True)
class View:
    """The facts about a place in a text that are known before its token is.

    table: features (B, F).
    sorts: the kinds of place it belongs to, which are counted separately.
    others: other laws (B,) that the token might follow.
    """

    law: Bins
    table: HostArray
    sorts: Sequence[Hashable] = ()
    others: Sequence[HostArray] = ()


@dataclass
class _Counts:
    """How often tokens came at one kind of place, and how often they were expected."""

    seen: dict[str, float] = field(default_factory=dict)
    due: dict[str, float] = field(default_factory=dict)


@dataclass
class Evidence:
    """The wealth of all experts.

    num_sorts: the number of kinds of place that are counted separately.
    num_others: the number of other laws that are mixed in.
    num_mechanisms: the number of simulated faults.
    """

    num_features: int
    num_sorts: int
    num_others: int = 0
    num_mechanisms: int = 0
    num_tokens: int = 0

    def __post_init__(self) -> None:
        """Divide the initial wealth of 1 equally among families of experts, and within each
        family."""
        size = self.num_features
        self._thetas = np.concatenate([tilt * np.eye(size) for tilt in TILTS])  # (M, F)
        counting, mixing = self.num_sorts * len(STRENGTHS), self.num_others * len(MIXTURES)
        simulating = self.num_mechanisms * len(BELIEFS)
        kinds = (len(self._thetas), len(LEARNED), counting, mixing, simulating)
        kinds_there = sum(count > 0 for count in kinds)
        self._shares = np.concatenate(
            [np.full(count, -math.log(kinds_there * count)) for count in kinds if count]
        )  # (E,), logarithms
        self._wealth = np.zeros(len(self._shares))  # (E,), logarithms
        self._score, self._spread = np.zeros(size), np.zeros((size, size))
        self._counts: dict[Hashable, _Counts] = defaultdict(_Counts)
        self._won: dict[Hashable, HostArray] = {}  # (E,), logarithms, by the sort of a place

    @property
    def log_wealth(self) -> float:
        """The logarithm of the e-value (the total wealth)."""
        total = self._shares + self._wealth
        top = float(total.max())
        return top + math.log(float(np.exp(total - top).sum()))

    @property
    def best_bet(self) -> float:
        """The log-wealth of the best expert, ignoring its initial share: an early hint, not
        evidence."""
        return float(self._wealth.max())

    def best_bet_on(self, sort: Hashable) -> float:
        """The log-wealth that the best expert has won at places of this kind; a hint like
        `best_bet`."""
        return float(self._won[sort].max()) if sort in self._won else 0.0

    def add(
        self,
        view: View,
        seen: int | None,
        mechanisms: Sequence[HostArray] = (),
        slack: float = 0.0,
    ) -> None:
        """Bet on one token.

        seen: the index of its bin. None for a token that was not shown, such as the end of a text:
        then every expert gets the smallest factor of any token, which keeps the test valid.
        mechanisms: the laws (B,) of simulated faults.
        slack: how far rounding may move the ratio of two probabilities.
        """
        bins = view.law
        chances = np.maximum(bins.chances, LEAST_BET)[:, None]
        tilts = np.exp(view.table @ np.concatenate([self._thetas, self._suggested()]).T)
        columns = [chances * tilts]
        columns += [chances * self._ratios(bins.keys, sort) for sort in view.sorts]
        for laws, parts in ((view.others, MIXTURES), (mechanisms, BELIEFS)):
            shares = np.array(parts)
            columns += [chances * (1 - shares) + law[:, None] * shares for law in laws]
        bets = np.concatenate(columns, axis=1)  # (B, E)
        bets /= bets.sum(axis=0)
        most = bins.most[:, None]
        factors = bets / most
        fair = 1.0 + slack * (most * np.abs(factors - 1.0)).sum(axis=0)
        won = np.log((factors.min(axis=0) if seen is None else factors[seen]) / fair)
        self._wealth = self._wealth + won
        for sort in view.sorts[:1]:
            self._won[sort] = self._won.get(sort, 0.0) + won
        self.num_tokens += 1
        if seen is not None:
            self._learn(view, seen)

    def _suggested(self) -> HostArray:
        """The tilts of the learning experts, (L, F): shares of a Newton step, shrunk."""
        step = np.linalg.solve(self._spread + RIDGE * np.eye(self.num_features), self._score)
        return np.asarray(np.clip([share * step for share in LEARNED], -STEEPEST, STEEPEST))

    def _ratios(self, keys: Sequence[str], sort: Hashable) -> HostArray:
        """The factors by which the counting experts multiply probabilities, (B, len(STRENGTHS))."""
        counts = self._counts[sort]
        if not counts.due:
            return np.ones((len(keys), len(STRENGTHS)))
        seen, due = (
            np.fromiter((known.get(key, 0.0) for key in keys), float, len(keys))[:, None]
            for known in (counts.seen, counts.due)
        )
        return np.asarray((seen + STRENGTHS) / (due + STRENGTHS))

    def _learn(self, view: View, seen: int) -> None:
        """Update the learning and counting experts with the token that came."""
        bins, table = view.law, view.table
        mean = bins.chances @ table
        self._score += table[seen] - mean
        self._spread += (table * bins.chances[:, None]).T @ table - np.outer(mean, mean)
        for sort in view.sorts:
            counts = self._counts[sort]
            counts.seen[bins.keys[seen]] = counts.seen.get(bins.keys[seen], 0.0) + 1.0
            for key, chance in zip(bins.keys, bins.chances.tolist(), strict=True):
                counts.due[key] = counts.due.get(key, 0.0) + chance


def needed(alpha: float) -> float:
    """The log-wealth at which a law is rejected at level alpha."""
    return -math.log(alpha)


@dataclass
class Wealth:
    """The evidence of every condition, one for each interpretation of its options, and of the
    pool."""

    pool: Evidence
    parts: dict[str, list[Evidence]]  # by name
    spent: Counter[tuple[str, str]] = field(default_factory=Counter)  # tokens, by name and prompt

    @property
    def log_e_value(self) -> float:
        """The logarithm of the weighted mean of all wealths."""
        logs = [math.log((1 - POOLED) / len(self.parts)) + self.of(name) for name in self.parts]
        return float(np.logaddexp.reduce([math.log(POOLED) + self.pool.log_wealth, *logs]))

    @property
    def num_tokens(self) -> int:
        """The number of tokens that were bet on, under all conditions."""
        return sum(evidence[0].num_tokens for evidence in self.parts.values())

    def of(self, name: str) -> float:
        """The log-wealth of a condition, under the interpretation that explains the tokens best."""
        return min(evidence.log_wealth for evidence in self.parts[name])

    def suspect(self) -> str | None:
        """The condition with the most evidence against it; None for the pool of all conditions."""
        name = max(self.parts, key=self.of)
        share = math.log(POOLED * len(self.parts) / (1 - POOLED))
        return None if self.pool.log_wealth + share > self.of(name) else name

    def next(self, conditions: Sequence[Condition]) -> Condition:
        """The condition for the next text: the one whose best bet has won most per token spent.

        Without any sign of a fault, all get equally many texts. The choice depends only on earlier
        texts, so the test stays valid.
        """

        def promise(condition: Condition) -> float:
            """The log-wealth that one more token under a condition is expected to win."""
            hint = min(evidence.best_bet for evidence in self.parts[condition.name])
            return promising(hint, self.spent_under(condition.name))

        return max(conditions, key=promise)

    def next_prompt(self, condition: Condition, prompts: Sequence[Prompt]) -> Prompt:
        """The prompt for the next text under a condition: the one on which the best bet has won
        most per token spent."""
        (evidence, *_) = self.parts[condition.name]

        def promise(prompt: Prompt) -> float:
            """The log-wealth that one more token on a prompt may win."""
            hint = evidence.best_bet_on(("prompt", prompt.text))
            return promising(hint, self.spent[condition.name, prompt.text])

        return max(prompts, key=promise)

    def spent_under(self, name: str) -> int:
        """The number of tokens spent under a condition."""
        return sum(count for (one, _), count in self.spent.items() if one == name)


def promising(hint: float, spent: int) -> float:
    """The log-wealth that the best bet has won per token spent; inf if little was spent."""
    return math.inf if spent < LEAST_SPENT else (max(hint, 0.0) + HOPED) / (spent + BEGUN)
