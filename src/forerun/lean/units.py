"""Reads the units in which GGUF's types pack weights: 32 of them, or 256."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.lean.jit import inner

Bytes = NDArray[np.uint8]
Wholes = NDArray[np.int16]

Q4_0, Q4_1, Q5_0, Q5_1, Q8_0 = 2, 3, 6, 7, 8  # GGUF's numbers of types
Q2_K, Q3_K, Q4_K, Q5_K, Q6_K = 10, 11, 12, 13, 14
ONES = np.uint32(0x01010101)
LOW_FOUR, LOW_TWO = np.uint32(0x0F0F0F0F), np.uint32(0x03030303)
"""Masks of the low bits of each byte of a word."""
WORDS, BLOCKS_OF_UNIT = 64, 16  # at most


@inner
def _word(raw: Bytes, at: int) -> np.uint32:
    """Four bytes, which need not be aligned, as one number. The index is unsigned, so that the
    compiler makes it a single load."""
    first = np.uint64(at)
    return (
        np.uint32(raw[first])
        | np.uint32(raw[first + np.uint64(1)]) << np.uint32(8)
        | np.uint32(raw[first + np.uint64(2)]) << np.uint32(16)
        | np.uint32(raw[first + np.uint64(3)]) << np.uint32(24)
    )


@inner
def bits_of(raw: Bytes, at: int) -> Any:
    """The bits of a float16."""
    return np.int64(raw[at]) | np.int64(raw[at + 1]) << 8


@inner
def _spread(bits: np.uint32) -> np.uint32:
    """The low four bits, one in each byte of a word."""
    return (
        (bits & np.uint32(1))
        | (bits & np.uint32(2)) << np.uint32(7)
        | (bits & np.uint32(4)) << np.uint32(14)
        | (bits & np.uint32(8)) << np.uint32(21)
    )


@inner
def decode(
    raw: Bytes, at: int, type: int, q: NDArray[np.uint32], scales: Wholes, offsets: Wholes
) -> None:
    """Decode the unit at byte `at` of `raw`: write its q, four to a word, and for each block the
    whole numbers by which the unit's d and m are multiplied."""
    four = np.uint32(4)
    scales[0], offsets[0] = 1, 0
    if type == Q8_0:
        for i in range(8):
            q[i] = _word(raw, at + 2 + 4 * i) ^ ONES << np.uint32(7)  # signed; now 128 is zero
    elif type in (Q4_0, Q4_1):
        offsets[0] = -8 if type == Q4_0 else 1
        at += 2 if type == Q4_0 else 4
        for i in range(4):
            word = _word(raw, at + 4 * i)
            q[i], q[i + 4] = word & LOW_FOUR, word >> four & LOW_FOUR
    elif type in (Q5_0, Q5_1):
        offsets[0] = 0 if type == Q5_0 else 1
        at += 2 if type == Q5_0 else 4
        fifth = _word(raw, at)
        for i in range(4):
            word, bits = _word(raw, at + 4 + 4 * i), fifth >> np.uint32(4 * i)
            q[i] = word & LOW_FOUR | _spread(bits) << four
            q[i + 4] = word >> four & LOW_FOUR | _spread(bits >> np.uint32(16)) << four
    elif type in (Q4_K, Q5_K):
        for j in range(8):
            if j < 4:
                scale, offset = raw[at + 4 + j] & 63, raw[at + 8 + j] & 63
            else:
                scale = raw[at + 8 + j] & 15 | (raw[at + j] >> 6) << 4
                offset = raw[at + 8 + j] >> 4 | (raw[at + 4 + j] >> 6) << 4
            scales[j], offsets[j] = np.int64(scale), -np.int64(offset)
        digits = at + 16 if type == Q4_K else at + 48
        for j in range(4):
            for i in range(8):
                word = _word(raw, digits + 32 * j + 4 * i)
                low, high = word & LOW_FOUR, word >> four & LOW_FOUR
                if type == Q5_K:
                    fifths = _word(raw, at + 16 + 4 * i) >> np.uint32(2 * j)
                    low |= (fifths & ONES) << four
                    high |= (fifths >> np.uint32(1) & ONES) << four
                q[16 * j + i], q[16 * j + 8 + i] = low, high
    elif type == Q6_K:
        for j in range(16):
            scales[j], offsets[j] = np.int8(raw[at + 192 + j]), 0
        for j in range(2):
            for i in range(8):
                first = _word(raw, at + 64 * j + 4 * i)
                second = _word(raw, at + 64 * j + 32 + 4 * i)
                high = _word(raw, at + 128 + 32 * j + 4 * i)
                to = 32 * j + i
                q[to] = first & LOW_FOUR | (high & LOW_TWO) << four
                q[to + 8] = second & LOW_FOUR | (high >> np.uint32(2) & LOW_TWO) << four
                q[to + 16] = first >> four & LOW_FOUR | (high >> four & LOW_TWO) << four
                q[to + 24] = second >> four & LOW_FOUR | (high >> np.uint32(6) & LOW_TWO) << four
    elif type == Q3_K:
        for j in range(16):
            low = raw[at + 96 + j % 8] >> (0 if j < 8 else 4) & 15
            high = raw[at + 104 + j % 4] >> 2 * (j // 4) & 3
            scales[j], offsets[j] = np.int64(low | high << 4) - 32, 0
        for j in range(8):
            for i in range(8):
                low = (
                    _word(raw, at + 32 + 32 * (j // 4) + 4 * i) >> np.uint32(2 * (j % 4)) & LOW_TWO
                )
                high = _word(raw, at + 4 * i) >> np.uint32(j) & ONES
                q[8 * j + i] = low | high << np.uint32(2)
    else:  # Q2_K
        for j in range(16):
            scales[j], offsets[j] = np.int64(raw[at + j] & 15), -np.int64(raw[at + j] >> 4)
        for j in range(8):
            for i in range(8):
                word = _word(raw, at + 16 + 32 * (j // 4) + 4 * i)
                q[8 * j + i] = word >> np.uint32(2 * (j % 4)) & LOW_TWO
