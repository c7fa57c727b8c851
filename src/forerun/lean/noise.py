"""The target's noise in compiled code: token by token for drafters, and as a race over a whole law.

These are the twins of `forerun.noise.race`, with equal numbers.  Sampling a token with NumPy, with
its calls on small arrays and its search for the largest scores, took a seventh as long as the pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from forerun.base.arrays import BLOCK
from forerun.lean.jit import compiled, exact_entry, sources
from forerun.lean.scalar import Floats, largest
from forerun.noise.addresses import Purpose
from forerun.noise.philox import KEY_STEPS, MULTIPLIERS, NUM_ROUNDS

CAUTION = 1e-6
"""Lowers the bound for scores by this share of a distance, so that the rounding of a logarithm
cannot exclude the winner."""

WORD = np.uint64(0xFFFFFFFF)
HALF = np.uint64(32)
FIRST, SECOND = np.uint64(MULTIPLIERS[0]), np.uint64(MULTIPLIERS[1])
FIRST_STEP, SECOND_STEP = np.uint64(KEY_STEPS[0]), np.uint64(KEY_STEPS[1])
OF_TOKEN, OF_BLOCK = np.uint64(int(Purpose.TARGET)), np.uint64(int(Purpose.TARGET_BLOCK))


@compiled
def exponential(low: Any, high: Any, position: int, token: int) -> Any:
    """The Exp(1) variate of a token at a position.  low, high: the words of the seed."""
    minimum, lane = block_minimum(low, high, position, token // BLOCK)
    if token % BLOCK == lane:
        return minimum
    return minimum + rest(low, high, position, token)


@compiled
def block_minimum(low: Any, high: Any, position: int, block: int) -> Any:
    """The smallest variate in a block of BLOCK tokens, and the token's index in the block."""
    words = philox(np.uint64(block), np.uint64(position), OF_BLOCK, low, high)
    return -np.log1p(-unit(words[0])) / BLOCK, np.int64(words[1] & np.uint64(BLOCK - 1))


@compiled
def rest(low: Any, high: Any, position: int, token: int) -> Any:
    """The amount by which a token's variate exceeds the minimum of its block, for all tokens but
    the one that has the minimum."""
    words = philox(np.uint64(token >> 2), np.uint64(position), OF_TOKEN, low, high)
    return -np.log1p(-unit(words[token & 3]))


@compiled
def unit(word: Any) -> Any:
    """A word of 32 bits as a number in (0, 1)."""
    return (np.float64(word) + 0.5) * 2.0**-32


@compiled
def philox(index: Any, position: Any, purpose: Any, low: Any, high: Any) -> Any:
    """The four 32-bit words of Philox4x32 for one counter under the key (low, high)."""
    c0, c1, c2, c3 = index, position & WORD, position >> HALF, purpose
    for _ in range(NUM_ROUNDS):
        one, two = FIRST * c0, SECOND * c2
        c0, c1 = (two >> HALF) ^ c1 ^ low, two & WORD
        c2, c3 = (one >> HALF) ^ c3 ^ high, one & WORD
        low, high = (low + FIRST_STEP) & WORD, (high + SECOND_STEP) & WORD
    return c0, c1, c2, c3


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
        """The token that wins the race; -1 if none can be chosen.

        scores: (V,).  best: the largest of them.  floor: tokens with a lower score cannot be
        chosen.  low, high: the words of the seed.
        """
        size, top = scores.size, np.float64(best)
        # `revision` is used so that it becomes part of the key under which Numba keeps the code.
        num_blocks, first = (size + BLOCK - 1) // BLOCK, 0 * revision
        tops = np.empty(num_blocks, np.float32)
        for block in range(num_blocks):
            begin = block * BLOCK
            tops[block] = largest(scores[begin:], min(BLOCK, size - begin))
            if tops[block] == best:
                first = block
        winner, soonest = -1, np.inf
        for turn in range(-1, num_blocks):
            block = first if turn < 0 else turn  # with the largest score first, few others matter
            begin = block * BLOCK
            minimum, lane = block_minimum(low, high, position, block)
            # A token arrives at its noise / weight, and its noise is at least the minimum, so it
            # can only win with a score of at least this:
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
