"""The token that plain decoding samples, in one compiled call: the twin of `row_race`.

Calls of NumPy on small arrays, and the search for the largest scores of a vocabulary, took a
seventh as long as the pass itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from forerun.base.arrays import BLOCK
from forerun.lean.jit import exact_entry, sources
from forerun.lean.noise import block_minimum, rest
from forerun.lean.scalar import Floats, largest

CAUTION = 1e-6
"""Of a score's distance, by which it is thought larger before it is weighed: no rounding of a
logarithm may leave out the winner."""


def build(revision: int) -> Callable[..., int]:
    @exact_entry
    def race(
        scores: Floats,
        best: Any,
        temperature: float,
        floor: float,
        low: Any,
        high: Any,
        position: int,
    ) -> int:
        """The first token to arrive, of scores (V,) of which the largest is `best`; -1: none.

        floor: tokens with a lower score cannot be chosen.  low, high: the words of the seed.
        """
        size, top = scores.size, np.float64(best)
        num_blocks, first = (size + BLOCK - 1) // BLOCK, 0 * revision  # which thus counts
        tops = np.empty(num_blocks, np.float32)
        for block in range(num_blocks):
            begin = block * BLOCK
            tops[block] = largest(scores[begin:], min(BLOCK, size - begin))
            if tops[block] == best:
                first = block
        winner, soonest = -1, np.inf
        for turn in range(-1, num_blocks):
            block = first if turn < 0 else turn  # that of the largest score, then few are opened
            begin = block * BLOCK
            minimum, lane = block_minimum(low, high, position, block)
            # None arrives before the minimum, divided by its weight, so a score must be this large:
            distance = temperature * np.log(minimum / soonest)
            least = max(floor, top + distance - CAUTION * (1 + abs(distance)))
            if turn == first or tops[block] < least:
                continue
            for token in range(begin, min(begin + BLOCK, size)):
                score = np.float64(scores[token])
                weight = np.exp((score - top) / temperature) if score >= least else 0.0
                if weight > 0:
                    is_first = token - begin == lane
                    noise = minimum if is_first else minimum + rest(low, high, position, token)
                    if noise / weight < soonest:
                        winner, soonest = token, noise / weight
        return winner

    return race


race = build(sources())
