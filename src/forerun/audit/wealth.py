"""Evidence of all conditions as one e-value, and which condition to look at next.

Each condition has wealth of its own, for faults that show under it alone, and those whose law has
one reading share a pool, for faults that show everywhere.  A condition with several honest
readings counts by the least of their wealths.  Under the true reading each is a martingale, so
their weighted mean starts at 1 and passes 1 / alpha at any time with a chance of at most alpha.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from forerun.audit.conditions import Condition
from forerun.audit.evidence import Evidence

POOLED = 0.5
"""The share of wealth that the pool starts with; the conditions have equal parts of the rest."""
LEAST_TOKENS = 24
"""Tokens that are asked for under every condition before one is preferred."""
WORTHWHILE = 0.005
"""Nats that a token must have brought for a condition to stay as interesting as it was."""


@dataclass
class Wealth:
    """The evidence of every condition, one for each reading of its law, and of the pool."""

    pool: Evidence
    parts: dict[str, list[Evidence]]  # by name
    asked: Counter[str] = field(default_factory=Counter)  # tokens of the texts of each

    @property
    def log_e_value(self) -> float:
        logs = [math.log((1 - POOLED) / len(self.parts)) + self.of(name) for name in self.parts]
        return float(np.logaddexp.reduce([math.log(POOLED) + self.pool.log_wealth, *logs]))

    @property
    def num_tokens(self) -> int:
        return sum(evidence[0].num_tokens for evidence in self.parts.values())

    def of(self, name: str) -> float:
        """The log-wealth of a condition: that of the honest reading which explains most."""
        return min(evidence.log_wealth for evidence in self.parts[name])

    def suspect(self) -> str | None:
        """The condition that the evidence is against; None: the pool, hence all together."""
        name = max(self.parts, key=self.of)
        share = math.log(POOLED * len(self.parts) / (1 - POOLED))
        return None if self.pool.log_wealth + share > self.of(name) else name

    def next(self, conditions: Sequence[Condition]) -> Condition:
        """Which condition the next text is asked under.

        That depends on earlier texts alone, so the test stays valid.
        """

        def promise(condition: Condition) -> float:
            if self.asked[condition.name] < LEAST_TOKENS:
                return math.inf
            hint = min(evidence.best_bet for evidence in self.parts[condition.name])
            return hint - WORTHWHILE * self.asked[condition.name]

        chosen = max(conditions, key=promise)
        self.asked[chosen.name] += chosen.length
        return chosen
