"""The target's noise token by token: the compiled twin of `forerun.noise.race`."""

from __future__ import annotations

from typing import Any

import numpy as np

from forerun.base.arrays import BLOCK
from forerun.lean.jit import compiled
from forerun.noise.addresses import Purpose
from forerun.noise.philox import KEY_STEPS, MULTIPLIERS, NUM_ROUNDS

WORD = np.uint64(0xFFFFFFFF)
HALF = np.uint64(32)
FIRST, SECOND = np.uint64(MULTIPLIERS[0]), np.uint64(MULTIPLIERS[1])
FIRST_STEP, SECOND_STEP = np.uint64(KEY_STEPS[0]), np.uint64(KEY_STEPS[1])
OF_TOKEN, OF_BLOCK = np.uint64(int(Purpose.TARGET)), np.uint64(int(Purpose.TARGET_BLOCK))


@compiled
def exponential(low: Any, high: Any, position: int, token: int) -> Any:
    """The Exp(1) of a token at a position, under a seed of two words."""
    minimum, lane = block_minimum(low, high, position, token // BLOCK)
    if token % BLOCK == lane:
        return minimum
    return minimum + rest(low, high, position, token)


@compiled
def block_minimum(low: Any, high: Any, position: int, block: int) -> Any:
    """The smallest exponential of a block of tokens, and the lane that has it."""
    words = philox(np.uint64(block), np.uint64(position), OF_BLOCK, low, high)
    return -np.log1p(-unit(words[0])) / BLOCK, np.int64(words[1] & np.uint64(BLOCK - 1))


@compiled
def rest(low: Any, high: Any, position: int, token: int) -> Any:
    """What a token's exponential has beyond the minimum of its block, in all lanes but one."""
    words = philox(np.uint64(token >> 2), np.uint64(position), OF_TOKEN, low, high)
    return -np.log1p(-unit(words[token & 3]))


@compiled
def unit(word: Any) -> Any:
    return (np.float64(word) + 0.5) * 2.0**-32


@compiled
def philox(index: Any, position: Any, purpose: Any, low: Any, high: Any) -> Any:
    """Four words for one counter."""
    c0, c1, c2, c3 = index, position & WORD, position >> HALF, purpose
    for _ in range(NUM_ROUNDS):
        one, two = FIRST * c0, SECOND * c2
        c0, c1 = (two >> HALF) ^ c1 ^ low, two & WORD
        c2, c3 = (one >> HALF) ^ c3 ^ high, one & WORD
        low, high = (low + FIRST_STEP) & WORD, (high + SECOND_STEP) & WORD
    return c0, c1, c2, c3
