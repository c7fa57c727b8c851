"""Randomness as a function: uniform(seed, position, token, purpose), never a stream.

The token chosen at a position is a function of that position's law and of noise that
depends on nothing else: not on the batch, on K, on the drafter, or on what was rejected.
That is what "same seed, same text" rests on.

Plain sampling is an exponential race: token i arrives at time E_i / p_i with E_i ~ Exp(1), and
the first to arrive is the sample (the Gumbel-max trick without the logarithms).  A drafter that
races its own law against the *same* E tends to pick the same winner.

A race over a whole vocabulary would need one random number per token.  It does not: the noise
has two levels.  Each block of 256 tokens draws the *minimum* of its exponentials (an Exp(256))
and which lane attains it; the other lanes are that minimum plus a fresh Exp(1), which by the
lack of memory are again independent Exp(1).  So a block whose minimum, divided by its largest
probability, is later than a time already seen cannot hold the winner and draws nothing more:
a row of 128,256 tokens needs 501 numbers and a few opened blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import array_api_compat as compat
import numpy as np

from forerun.arrays import (
    BLOCK,
    Array,
    Namespace,
    argmax_blocks,
    as_indices,
    num_blocks,
    reduce_blocks,
    take_blocks,
    widest_float,
)
from forerun.errors import InputError, explain
from forerun.philox import MASK, philox, round_keys, word_dtype

Key = Array
"""Philox keys, (rounds, 2, R): one per row."""

SLACK = 1 - 1e-6
"""Widens the set of tokens that could still win, so that rounding cannot leave out the winner."""


class Purpose(IntEnum):
    """What a number is for.  Different purposes never share bits."""

    TARGET = 0  # the exponential of one token
    TARGET_BLOCK = 1  # the minimum of a block of tokens and its lane
    DRAFT = 2  # drawing draft tokens for the law-only rules
    ACCEPT = 3  # acceptance coins
    RESIDUAL = 4  # the extra token of the law-only rules
    FOLD = 5  # a new seed out of a seed


def seed_key(xp: Namespace, seeds: Sequence[int], device: Any) -> Key:
    """The Philox keys of seeds (R,), one per row: (rounds, 2, R)."""
    for seed in seeds:
        if not 0 <= seed < 1 << 64:
            cure = "Use a whole number from 0 to 2**64 - 1."
            raise InputError(explain("A seed must fit 64 bits.", seed, cure))
    dtype = word_dtype(xp)
    low = xp.asarray([seed & MASK for seed in seeds], dtype=dtype, device=device)
    high = xp.asarray([seed >> 32 for seed in seeds], dtype=dtype, device=device)
    return round_keys(xp, low, high)


def uniform(
    seed: int, position: Any, token: Any, purpose: Purpose, *, xp: Namespace = None
) -> Array:
    """The number in (0, 1) at this address, to 32 bits; position and token broadcast."""
    xp = xp or compat.array_namespace(np.empty(0))
    position, token = as_indices(xp, position, None), as_indices(xp, token, None)
    key = seed_key(xp, [seed], compat.device(token))
    return _uniform(xp, key[:, :, 0], position, token, purpose)


def uniform_row(seed: int, position: int, num_tokens: int, purpose: Purpose) -> Array:
    """uniform(seed, position, 0..num_tokens - 1, purpose) in NumPy, all words used."""
    xp = compat.array_namespace(np.empty(0))
    quads = xp.arange(-(-num_tokens // 4), dtype=word_dtype(xp))
    words = _words(xp, seed_key(xp, [seed], None), xp.asarray([position]), quads, purpose)
    return _to_unit(xp, words.T.reshape(-1)[:num_tokens])


def fold(seed: int, index: int) -> int:
    """A seed for the index-th independent sample of a request; index 0 keeps the seed."""
    if index == 0:
        return seed
    xp = compat.array_namespace(np.empty(0))
    key = seed_key(xp, [seed], None)
    words = _words(xp, key, xp.asarray([0]), xp.asarray([index]), Purpose.FOLD)
    return int(words[0, 0]) | int(words[1, 0]) << 32


def exponentials(xp: Namespace, key: Key, positions: Array, tokens: Array) -> Array:
    """The target's Exp(1) noise at tokens (R, N) of positions (R,), one key per row."""
    key, positions = key[:, :, :, None], positions[:, None]
    minimum, lane = _block_minima(xp, key, positions, tokens // BLOCK)
    return _lane_noise(xp, key, positions, tokens, minimum, lane)


def race(xp: Namespace, weights: Array, key: Key, positions: Array) -> Array:
    """The winner of each row's race, (R,): a sample of weights (R, V), which need no normaliser.

    Two tokens of every block are timed first: its likeliest, and the one that has the minimum.
    No token can arrive before its block's minimum allows, so the best of those times rules out
    nearly all the others, and only what is left draws noise.
    """
    likeliest, largest = argmax_blocks(xp, weights)  # both (R, num_blocks)
    minimum, lane, noise = _opening(xp, key, positions, likeliest)
    fastest_time = _time(xp, minimum, _fastest_weights(xp, weights, lane))
    best = xp.min(xp.minimum(_time(xp, noise, largest), fastest_time), axis=1, keepdims=True)

    needed = xp.astype(minimum / best * SLACK, weights.dtype)  # the weight that could still win
    needed = xp.maximum(needed, _smallest(xp, weights.dtype))
    row, block = xp.nonzero(largest >= needed)
    tokens, values = take_blocks(xp, weights, row, block)  # both (M, BLOCK)
    opened, column = xp.nonzero(values >= needed[row, block][:, None])
    row, block, token = row[opened], block[opened], tokens[opened, column]
    noise = _lane_noise(
        xp, xp.take(key, row, axis=2), positions[row], token, minimum[row, block], lane[row, block]
    )
    first = _first_of_rows(xp, _time(xp, noise, values[opened, column]), row, weights.shape[0])
    return token[first]


def draw(xp: Namespace, weights: Array, unit: Array) -> Array:
    """Inverse-CDF sample of weights (R, V) from one number each, unit (R,), in two levels.

    Block sums first, then lanes: exact where the weights are, and free of the drift that a
    running float32 sum over a large vocabulary has.
    """
    sums = reduce_blocks(xp, _sum_wide(xp, weights), weights)  # (R, num_blocks)
    total = xp.sum(sums, axis=1)
    block, rest = _search(xp, sums, xp.astype(unit, total.dtype) * total)
    tokens, lanes = (part[:, 0, :] for part in take_blocks(xp, weights, block[:, None]))
    lane, _ = _search(xp, xp.astype(lanes, sums.dtype), rest)
    return xp.take_along_axis(tokens, lane[:, None], axis=1)[:, 0]


def coin(xp: Namespace, key: Key, positions: Array, slots: Any, purpose: Purpose) -> Array:
    """Uniforms (R, len(slots)) addressed by the round (its first position) and a slot in it."""
    slots = as_indices(xp, slots, compat.device(positions))
    return _uniform(xp, key[:, :, :, None], positions[:, None], slots[None, :], purpose)


def _first_of_rows(xp: Namespace, times: Array, counts: Array) -> Array:
    """Where each row's smallest entry is, for times (C,) listed row after row, counts (R,) each."""
    if counts.shape[0] == 1:
        return xp.argmin(times, keepdims=True)
    columns = xp.arange(int(xp.max(counts)), dtype=counts.dtype, device=compat.device(times))
    starts = (xp.cumulative_sum(counts) - counts)[:, None]
    there = columns[None, :] < counts[:, None]
    where = xp.where(there, starts + columns[None, :], 0)
    padded = xp.where(there, times[where], xp.full_like(times[:1], float("inf")))
    return starts[:, 0] + xp.argmin(padded, axis=1)


def _search(xp: Namespace, weights: Array, aim: Array) -> tuple[Array, Array]:
    """First column whose running sum passes aim (R,), and what of aim is left at its start."""
    running = xp.cumulative_sum(weights, axis=1)
    index = xp.count_nonzero(running <= aim[:, None], axis=1)
    columns = xp.arange(weights.shape[1], dtype=index.dtype, device=compat.device(weights))
    last = xp.max(xp.where(weights > 0, columns[None, :], 0), axis=1)
    index = xp.minimum(index, last)  # rounding may carry aim past the end, or onto an empty block
    here = xp.take_along_axis(running - weights, index[:, None], axis=1)[:, 0]
    return index, xp.maximum(aim - here, xp.zeros_like(aim))


def _sum_wide(xp: Namespace, weights: Array) -> Any:
    dtype = widest_float(xp, compat.device(weights))
    return lambda x, **kwargs: xp.sum(x, dtype=dtype, **kwargs)


def _lane_noise(
    xp: Namespace, key: Key, positions: Array, tokens: Array, minimum: Array, lane: Array
) -> Array:
    """A token's exponential: its block's minimum, plus a fresh Exp(1) in all lanes but one."""
    rest = _exponential(xp, _uniform(xp, key, positions, tokens, Purpose.TARGET))
    return xp.where(tokens % BLOCK == lane, minimum, minimum + rest)


def _time(xp: Namespace, noise: Array, weights: Array) -> Array:
    """noise / weights: when a token arrives.  Weight 0 arrives after everything else."""
    weights = xp.astype(weights, noise.dtype, copy=False)
    return noise / xp.maximum(weights, _smallest(xp, noise.dtype))


def _smallest(xp: Namespace, dtype: Any) -> Array:
    """A weight that loses to any real one, yet divides without overflow."""
    return xp.asarray(xp.finfo(dtype).smallest_normal * 16, dtype=dtype)


def _block_minima(xp: Namespace, key: Key, position: Array, block: Array) -> tuple[Array, Array]:
    """Each block's smallest exponential and the lane that has it; all arguments broadcast."""
    words = _words(xp, key, position, block, Purpose.TARGET_BLOCK)
    minimum = _exponential(xp, _to_unit(xp, words[0, ...])) / BLOCK
    return minimum, xp.astype(words[1, ...] & (BLOCK - 1), block.dtype)


def _exponential(xp: Namespace, unit: Array) -> Array:
    """-log(1 - u): fine-grained where it matters, at small times, and never 0."""
    return -xp.log1p(-unit)


def _uniform(xp: Namespace, key: Key, position: Array, token: Array, purpose: Purpose) -> Array:
    position, token = xp.broadcast_arrays(position, token)
    words = _words(xp, key, position, token >> 2, purpose)
    lane = (token & 3)[None, ...]
    return _to_unit(xp, xp.take_along_axis(words, lane, axis=0)[0, ...])


def _words(xp: Namespace, key: Key, position: Array, index: Array, purpose: Purpose) -> Array:
    """The four words at counter (index, position low, position high, purpose)."""
    dtype = word_dtype(xp)
    index = xp.astype(index, dtype, copy=False)
    position = xp.astype(position, dtype, copy=False)
    wide = dtype != getattr(xp, "uint32", None)
    high = (position >> 32) if wide else position * 0
    constant = xp.asarray(int(purpose), dtype=dtype, device=compat.device(index))
    return philox(xp, (index, position & MASK, high, constant), key)


def _to_unit(xp: Namespace, words: Array) -> Array:
    """(k + 1/2) / 2**32: in (0, 1), and kept below 1 where float32 would round up to it."""
    dtype = widest_float(xp, compat.device(words))
    unit = (xp.astype(words, dtype) + 0.5) * 2.0**-32
    return unit if dtype == xp.float64 else xp.minimum(unit, xp.asarray(1 - 2.0**-24, dtype=dtype))
