"""Randomness as a function, uniform(seed, position, token, purpose), instead of a stream.

The token chosen at a position depends only on that position's law and on noise that is a function
of seed and position: not on the batch, the draft length, the drafter, or rejections. This is why
the same seed gives the same text.

Sampling is an exponential race: token i arrives at time E_i / p_i with E_i ~ Exp(1), and the first
to arrive is the sample (the Gumbel-max trick without logarithms). A drafter that races its own law
with the *same* E tends to pick the same winner.

A plain race needs one random number per token of the vocabulary. Noise of two levels avoids that.
Each block of 256 tokens draws the *minimum* of its exponentials, which is Exp(256), and the lane
(place in the block) of that minimum; the exponential of any other lane is the minimum plus a fresh
Exp(1). Because the exponential distribution has no memory, these are independent Exp(1) again. If a
block's minimum, divided by its largest probability, is later than an arrival already seen, the
block cannot contain the winner and draws nothing more. A row of 128,256 tokens needs 501 numbers
and a few opened blocks.

On the host, `race_row` races a single row and does not even compute most weights. A weight is the
exponential of a score, and larger scores have larger weights, so the largest weight of a block is
found among scores, and only tokens that may still win are weighed: some hundreds of 50,000.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import array_api_compat as compat
import numpy as np

from forerun.base.arrays import (
    BLOCK,
    Array,
    HostArray,
    Namespace,
    argmax_blocks,
    as_indices,
    in_blocks,
    numpy_namespace,
    on_host,
    sum_blocks,
    take_blocks,
    take_columns,
    widest_float,
)
from forerun.noise.addresses import Addressing, by_round
from forerun.noise.addresses import Purpose as Purpose
from forerun.noise.philox import (
    MASK,
    as_words,
    check_seeds,
    philox,
    philox_one,
    round_keys,
    word_dtype,
)

Key = Array
"""Philox keys, (rounds, 2, R): one per row."""
Words = Sequence[Array]
"""The output of Philox: four arrays of words, of one shape."""

SLACK = 1 - 1e-6
"""Widens the set of tokens that could still win, so that rounding cannot leave out the winner."""


FEW = 16
"""Up to this number of values are drawn faster one by one than as an array."""


def seed_key(xp: Namespace, seeds: Sequence[int], device: Any) -> Key:
    """The Philox keys of seeds (R,), one per row: (rounds, 2, R)."""
    check_seeds(seeds)
    dtype = word_dtype(xp)
    low = xp.asarray([seed & MASK for seed in seeds], dtype=dtype, device=device)
    high = xp.asarray([seed >> 32 for seed in seeds], dtype=dtype, device=device)
    return round_keys(xp, low, high)


def uniform(
    seed: int, position: Any, token: Any, purpose: Purpose, *, xp: Namespace = None
) -> Array:
    """The random number in (0, 1), with 32 random bits, at an address. position and token
    broadcast.

    xp: the array library of the result; NumPy if None.
    """
    xp = xp or numpy_namespace()
    position, token = xp.broadcast_arrays(*(as_indices(xp, x, None) for x in (position, token)))
    key = seed_key(xp, [seed], compat.device(token))
    key = xp.reshape(key, (*key.shape[:2], *(1 for _ in token.shape)))
    return _uniform(xp, key, position, token, purpose)


def uniform_row(seed: int, position: int, num_tokens: int, purpose: Purpose) -> Array:
    """The numbers that `uniform` gives for tokens 0 .. num_tokens - 1, as a NumPy array. Faster,
    because it uses all four words of each counter."""
    xp = numpy_namespace()
    quads = xp.arange(-(-num_tokens // 4), dtype=word_dtype(xp))
    words = _words(xp, seed_key(xp, [seed], None), xp.asarray([position]), quads, purpose)
    return _to_unit(xp, np.stack(words, axis=-1).reshape(-1)[:num_tokens])


def fold(seed: int, index: int) -> int:
    """Derive the seed of the index-th of several objects that share a seed; index 0 keeps the seed
    itself."""
    if index == 0:
        return seed
    words = philox_one((index, 0, 0, int(Purpose.FOLD)), (seed & MASK, seed >> 32))
    return words[0] | words[1] << 32


def folds(seed: int, count: int) -> list[int]:
    """The results of `fold` for indices 0 .. count - 1."""
    if count <= FEW:
        return [fold(seed, index) for index in range(count)]
    xp = numpy_namespace()
    key, index = seed_key(xp, [seed], None), xp.arange(count, dtype=word_dtype(xp))
    low, high, *_ = _words(xp, key, xp.zeros_like(index), index, Purpose.FOLD)
    return [seed, *(low | high << 32)[1:].tolist()]


def exponentials(xp: Namespace, key: Key, positions: Array, tokens: Array) -> Array:
    """The target's Exp(1) noise at tokens (R, N) of positions (R,), one key per row."""
    count, device = tokens.shape[1], compat.device(tokens)
    purposes = [
        xp.full((count,), int(purpose), dtype=tokens.dtype, device=device)
        for purpose in (Purpose.TARGET_BLOCK, Purpose.TARGET)
    ]
    index = xp.concat([tokens // BLOCK, tokens >> 2], axis=1)  # both levels in one call
    words = _words(xp, key[:, :, :, None], positions[:, None], index, xp.concat(purposes))
    minimum, lane = _minimum(xp, [word[:, :count] for word in words], tokens.dtype)
    rest = _exponential(xp, _pick(xp, [word[:, count:] for word in words], tokens))
    return xp.where(tokens % BLOCK == lane, minimum, minimum + rest)


def race(xp: Namespace, weights: Array, key: Key, positions: Array) -> Array:
    """The winner of each row's race, (R,): a sample from weights (R, V), which need not sum to 1.

    First, a few tokens are timed: the row's likeliest, and the token with the minimum in each
    block. No token arrives earlier than its block's minimum allows, so the best of these times
    rules out nearly all others, and only the remaining tokens draw noise.
    """
    if compat.is_jax_namespace(xp):  # JAX would compile again for every number of tokens left
        return _whole_race(xp, weights, key, positions)
    likeliest, largest = argmax_blocks(xp, weights)  # both (R, num_blocks)
    minimum, lane = block_minima(xp, key, positions, weights.shape[1])

    def arrivals(row: Array, block: Array, token: Array) -> Array:
        """The arrival times of tokens (C,) in the given rows and blocks, each (C,)."""
        noise = lane_noise(
            xp,
            xp.take(key, row, axis=2),
            positions[row],
            token,
            minimum[row, block],
            lane[row, block],
        )
        return arrival(xp, noise, weights[row, token])

    rows = xp.arange(weights.shape[0], dtype=positions.dtype, device=compat.device(weights))
    top = xp.argmax(largest, axis=1)
    fastest = arrival(xp, minimum, _fastest_weights(xp, weights, lane))
    best = xp.minimum(arrivals(rows, top, likeliest[rows, top]), xp.min(fastest, axis=1))

    needed = xp.astype(minimum / best[:, None] * SLACK, weights.dtype)  # to arrive before the best
    needed = xp.maximum(needed, smallest_weight(xp, weights.dtype))
    row, block = xp.nonzero(largest >= needed)
    tokens, values = take_blocks(xp, weights, row, block)  # both (M, BLOCK)
    opened, column = xp.nonzero(values >= needed[row, block][:, None])
    row, block, token = row[opened], block[opened], tokens[opened, column]
    return token[_first_of_rows(xp, arrivals(row, block, token), row, weights.shape[0])]


def block_minima(xp: Namespace, key: Key, positions: Array, num_tokens: int) -> tuple[Array, Array]:
    """The smallest exponential of every block at positions (R,), and the lane that has it: two
    arrays (R, num_blocks)."""
    device = compat.device(positions)
    blocks = xp.arange(-(-num_tokens // BLOCK), dtype=positions.dtype, device=device)
    return _block_minima(xp, key[:, :, :, None], positions[:, None], blocks[None, :])


def _whole_race(xp: Namespace, weights: Array, key: Key, positions: Array) -> Array:
    """The winners of `race`, computed from noise for every token."""
    tokens = xp.arange(weights.shape[1], dtype=positions.dtype, device=compat.device(weights))
    noise = exponentials(xp, key, positions, xp.broadcast_to(tokens, weights.shape))
    return xp.argmin(arrival(xp, noise, weights), axis=1)


def draw(xp: Namespace, weights: Array, unit: Array) -> Array:
    """Samples (R,) from weights (R, V) by inverse CDF, with one uniform number each, unit (R,).

    A block is drawn first, then a token in it. So the draw is as exact as the sums of the blocks; a
    running float32 sum over a large vocabulary would drift.
    """
    dtype = widest_float(xp, compat.device(weights))
    sums = xp.astype(sum_blocks(xp, weights), dtype)  # (R, num_blocks)
    running = xp.cumulative_sum(sums, axis=1)
    aim = xp.astype(unit, dtype) * running[:, -1]
    block = _search(xp, running, aim)
    rows = xp.arange(weights.shape[0], dtype=block.dtype, device=compat.device(weights))
    rest = aim - (running[rows, block] - sums[rows, block])
    tokens, lanes = take_blocks(xp, weights, rows, block)
    lane = _search(xp, xp.cumulative_sum(xp.astype(lanes, dtype), axis=1), rest)
    return tokens[rows, lane]


def coin(
    xp: Namespace,
    key: Key,
    positions: Array,
    slots: Any,
    purpose: Purpose,
    addressing: Addressing = by_round,
) -> Array:
    """The uniform numbers (R, len(slots)) of slots in the rounds that start at positions (R,)."""
    slots = as_indices(xp, slots, compat.device(positions))
    place, index = addressing(purpose, positions[:, None], slots[None, :])
    return _uniform(xp, key[:, :, :, None], place, index, purpose)


def _fastest_weights(xp: Namespace, weights: Array, lane: Array) -> Array:
    """The weight of the token with each block's minimum, (R, num_blocks); 0 if that token is past
    the vocabulary."""
    width = weights.shape[1]
    tokens = in_blocks(xp, lane)
    if width % BLOCK == 0:
        return take_columns(xp, weights, tokens)
    entries = take_columns(xp, weights, xp.minimum(tokens, width - 1))
    return xp.where(tokens < width, entries, 0.0)


def _first_of_rows(xp: Namespace, times: Array, row: Array, num_rows: int) -> Array:
    """The index of each row's smallest time.

    times: (C,). row: (C,), ascending, the row of each time.
    """
    if num_rows == 1:
        return xp.argmin(times, keepdims=True)
    edges = xp.arange(num_rows + 1, dtype=row.dtype, device=compat.device(row))
    edges = xp.searchsorted(row, edges)
    starts, counts = edges[:-1, None], edges[1:] - edges[:-1]
    columns = xp.arange(int(xp.max(counts)), dtype=edges.dtype, device=compat.device(row))
    there = columns[None, :] < counts[:, None]
    padded = xp.where(there, times[xp.where(there, starts + columns[None, :], 0)], float("inf"))
    return starts[:, 0] + xp.argmin(padded, axis=1)


def _search(xp: Namespace, running: Array, aim: Array) -> Array:
    """The first column whose running sum (R, N) exceeds aim (R,), or the last with a weight.

    Rounding may carry the aim past the last sum; a column of weight 0 is not chosen even then.
    """
    passed = xp.count_nonzero(running <= aim[:, None], axis=1)
    last = xp.count_nonzero(running < running[:, -1:], axis=1)
    return xp.minimum(passed, last)


def lane_noise(
    xp: Namespace, key: Key, positions: Array, tokens: Array, minimum: Array, lane: Array
) -> Array:
    """The exponentials of tokens: their block's minimum, plus a fresh Exp(1) except in the
    minimum's own lane."""
    rest = _exponential(xp, _uniform(xp, key, positions, tokens, Purpose.TARGET))
    return xp.where(tokens % BLOCK == lane, minimum, minimum + rest)


def arrival(xp: Namespace, noise: Array, weights: Array) -> Array:
    """Arrival times noise / weights; a token of weight 0 arrives after all others."""
    weights = xp.astype(weights, noise.dtype, copy=False)
    return noise / xp.maximum(weights, smallest_weight(xp, noise.dtype))


def smallest_weight(xp: Namespace, dtype: Any) -> float:
    """A weight that loses against any real one but can still be divided by without overflow."""
    return float(xp.finfo(dtype).smallest_normal * 16)


def _block_minima(xp: Namespace, key: Key, position: Array, block: Array) -> tuple[Array, Array]:
    """The smallest exponential of each block and the lane that has it; all arguments broadcast."""
    return _minimum(xp, _words(xp, key, position, block, Purpose.TARGET_BLOCK), block.dtype)


def _minimum(xp: Namespace, words: Words, dtype: Any) -> tuple[Array, Array]:
    """An Exp(BLOCK) made from the first of four words, and a lane from the second."""
    minimum = _exponential(xp, _to_unit(xp, words[0])) / BLOCK
    return minimum, xp.astype(words[1] & (BLOCK - 1), dtype)


def _exponential(xp: Namespace, unit: Array) -> Array:
    """-log(1 - u): precise at small times, where it matters, and never 0."""
    return -xp.log1p(-unit)


def _uniform(xp: Namespace, key: Key, position: Array, token: Array, purpose: Purpose) -> Array:
    """The numbers in (0, 1) at addresses; all arguments broadcast."""
    position, token = xp.broadcast_arrays(position, token)
    if math.prod(token.shape) <= FEW and on_host(xp, compat.device(token)):
        return _uniform_few(xp, key, position, token, purpose)
    return _pick(xp, _words(xp, key, position, token >> 2, purpose), token)


def _uniform_few(xp: Namespace, key: Key, position: Array, token: Array, purpose: int) -> Array:
    """The numbers of `_uniform`, computed one by one in Python integers."""
    seeds = xp.broadcast_to(key[0, ...], (2, *token.shape))
    columns = (seeds[0, ...], seeds[1, ...], position, token)
    addresses = zip(*(xp.reshape(column, (-1,)).tolist() for column in columns), strict=True)
    units = [uniform_one((low, high), at, t, purpose) for low, high, at, t in addresses]
    return xp.reshape(xp.asarray(units, dtype=xp.float64), token.shape)


def uniform_one(seed: tuple[int, int], position: int, token: int, purpose: int) -> float:
    """The number in (0, 1) at one address.  seed: its low and high word."""
    words = philox_one((token >> 2, position & MASK, position >> 32, int(purpose)), seed)
    return (words[token & 3] + 0.5) / 2**32


def _pick(xp: Namespace, words: Words, token: Array) -> Array:
    """The numbers in (0, 1) of tokens: each token takes one of the four words."""
    odd, late = token % 2 == 1, token % 4 >= 2
    return _to_unit(
        xp, xp.where(late, xp.where(odd, words[3], words[2]), xp.where(odd, words[1], words[0]))
    )


def _words(xp: Namespace, key: Key, position: Array, index: Array, purpose: int | Array) -> Words:
    """The four words at counter (index, position low, position high, purpose)."""
    dtype = word_dtype(xp)
    index = xp.astype(index, dtype, copy=False)
    position = xp.astype(position, dtype, copy=False)
    low, high = position, position * 0
    if xp.iinfo(dtype).bits > 32:
        low, high = position & MASK, position >> 32
    if isinstance(purpose, int):
        purpose = as_words(xp, int(purpose), index)
    return philox(xp, (index, low, high, xp.astype(purpose, dtype, copy=False)), key)


def _to_unit(xp: Namespace, words: Array) -> Array:
    """(k + 1/2) / 2**32 of words k: in (0, 1), and kept below 1 where float32 would round up."""
    dtype = widest_float(xp, compat.device(words))
    unit = (xp.astype(words, dtype) + 0.5) * 2.0**-32
    return unit if dtype == xp.float64 else xp.minimum(unit, 1 - 2.0**-24)


def race_row(
    scores: HostArray,
    weigh: Callable[[HostArray], HostArray],
    key: Key,
    position: int,
    minimum: HostArray,
    lane: HostArray,
) -> int:
    """The winner of one row's race on the host, with known block minima. A NumPy twin of `race`.

    scores: (V,).
    weigh: turns scores into weights, which must rise with the score; most scores are never weighed.
    key: (rounds, 2, 1).
    minimum, lane: (num_blocks,), from `block_minima`.
    """
    size, starts = len(scores), np.arange(0, len(scores), BLOCK)
    num_whole = size // BLOCK
    largest = scores[: num_whole * BLOCK].reshape(-1, BLOCK).max(axis=1)
    if num_whole < len(starts):
        largest = np.append(largest, scores[num_whole * BLOCK :].max())
    top = int(largest.argmax())
    likeliest = int(scores[top * BLOCK : (top + 1) * BLOCK].argmax())
    largest = weigh(largest)
    fastest = starts + lane
    fastest_scores = scores.take(fastest, mode="clip")
    fastest_scores[fastest >= size] = -np.inf
    best = arrival(numpy_namespace(), minimum, weigh(fastest_scores)).min()
    time = minimum[top]
    if likeliest != lane[top]:
        seed = (int(key[0, 0, 0]), int(key[0, 1, 0]))
        unit = uniform_one(seed, position, top * BLOCK + likeliest, Purpose.TARGET)
        time = time - math.log1p(-unit)
    best = min(best, time / float(largest[top]))
    needed = np.maximum(minimum * (SLACK / best), smallest_weight(numpy_namespace(), minimum.dtype))
    opened = np.flatnonzero(largest >= needed)
    token = starts[opened, None] + np.arange(BLOCK)
    weights = weigh(scores.take(token, mode="clip"))
    row, column = np.nonzero((weights >= needed[opened, None]) & (token < size))
    if len(row) == 1:
        return int(token[row[0], column[0]])
    block, token, weights = opened[row], token[row, column], weights[row, column]
    at = np.full_like(token, position)
    noise = lane_noise(numpy_namespace(), key, at, token, minimum[block], lane[block])
    return int(token[arrival(numpy_namespace(), noise, weights).argmin()])
