"""The law at one position, as the scores that it is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from forerun.base.arrays import HostArray


@dataclass(frozen=True)
class Law:
    """The law at a position, as scores (V,): a token weighs exp((score - best) / temperature).

    Whoever samples it weighs few tokens; an exponential for each of 50,000 would take longer than
    all else that is done to choose one.  (The total that top_p needs takes them all the same.)
    """

    scores: HostArray
    best: Any  # of the scores
    temperature: float = 1.0
    floor: float = -np.inf  # tokens with a lower score weigh nothing

    def weigh(self, scores: HostArray) -> HostArray:
        """The weights of some of its scores, the larger the larger, at most 1."""
        with np.errstate(over="ignore"):  # a tiny temperature takes all but the best to exp(-inf)
            weights = scores - self.best
            weights /= self.temperature
        np.exp(weights, out=weights)
        if self.floor > -np.inf:
            weights[scores < self.floor] = 0.0
        return np.asarray(weights)

    @property
    def weights(self) -> HostArray:
        """Of all tokens, (V,)."""
        return self.weigh(self.scores)
