"""The Philox-4x32-10 generator: turns a counter into four random 32-bit words, the same in every
array library.

A counter-based generator has no state: a random number is looked up at an address instead of taken
from a stream, so earlier events (rejections, other requests, another draft length) cannot shift it.

Both halves of the round function are in one stacked array, which halves the number of array
operations. Words are stored in the widest integers that the library multiplies without loss.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import array_api_compat as compat

from forerun.base.arrays import Array, Namespace
from forerun.base.errors import InputError, explain

MASK = 0xFFFFFFFF
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
NUM_ROUNDS = 10


def check_seeds(seeds: Sequence[int]) -> None:
    """Raise InputError unless all seeds are whole numbers from 0 to 2**64 - 1."""
    for seed in seeds:
        if not 0 <= seed < 1 << 64:
            cure = "Use a whole number from 0 to 2**64 - 1."
            raise InputError(explain("A seed must fit 64 bits.", seed, cure))


def word_dtype(xp: Namespace) -> Any:
    """The integer type for words. JAX has no 64-bit integers by default, and Torch has no unsigned
    ones."""
    if compat.is_jax_namespace(xp):
        return xp.uint32
    return xp.int64 if compat.is_torch_namespace(xp) else xp.uint64


def philox(xp: Namespace, counter: tuple[Array, ...], keys: Array) -> tuple[Array, ...]:
    """Four words for every counter.

    counter: four arrays of words that broadcast to a shape S; keys: (rounds, 2, *T) from
    `round_keys`, with T broadcasting to S.  Returns four arrays of shape S.
    """
    if compat.is_jax_namespace(xp):
        return _compiled(xp)(counter, keys)
    return _rounds(xp, counter, keys)


@cache
def _compiled(xp: Namespace) -> Callable[..., tuple[Array, ...]]:
    """`_rounds` compiled as one JAX program; otherwise JAX would dispatch each operation alone."""
    import jax

    program: Callable[..., tuple[Array, ...]] = jax.jit(partial(_rounds, xp))
    return program


def _rounds(xp: Namespace, counter: tuple[Array, ...], keys: Array) -> tuple[Array, ...]:
    """The ten rounds of `philox`, operation by operation."""
    c0, c1, c2, c3 = xp.broadcast_arrays(*counter)
    multiply = _multiplier(xp)
    flipped = xp.stack([c0, c2])  # the two words that are multiplied
    passed = xp.stack([c1, c3])  # the two that are only mixed in
    multipliers = xp.reshape(as_words(xp, MULTIPLIERS, c0), (2,) + (1,) * c0.ndim)
    mask = as_words(xp, MASK, c0)
    for index in range(NUM_ROUNDS):
        high, low = multiply(multipliers, flipped, mask)
        flipped = _swap(xp, high)
        flipped ^= passed
        flipped ^= keys[index, ...]
        passed = _swap(xp, low)
    return flipped[0, ...], passed[0, ...], flipped[1, ...], passed[1, ...]


def philox_one(counter: tuple[int, ...], key: tuple[int, int]) -> tuple[int, ...]:
    """The four words of one counter, computed in Python integers; for a few counters this is faster
    than arrays."""
    c0, c1, c2, c3 = counter
    first, second = key
    for _ in range(NUM_ROUNDS):
        one, two = MULTIPLIERS[0] * c0, MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = two >> 32 ^ c1 ^ first, two & MASK, one >> 32 ^ c3 ^ second, one & MASK
        first, second = first + KEY_STEPS[0] & MASK, second + KEY_STEPS[1] & MASK
    return c0, c1, c2, c3


def round_keys(xp: Namespace, low: Array, high: Array) -> Array:
    """The keys of all rounds, (rounds, 2, *T), from the low and high words of keys (T)."""
    counts = xp.arange(NUM_ROUNDS, dtype=low.dtype, device=compat.device(low))
    counts = xp.reshape(counts, (-1,) + (1,) * low.ndim)
    first, second, mask = (as_words(xp, word, low) for word in (*KEY_STEPS, MASK))
    return xp.stack([(low + first * counts) & mask, (high + second * counts) & mask], axis=1)


def as_words(xp: Namespace, values: int | tuple[int, ...], like: Array) -> Array:
    """Integer constants in the dtype of `like`. Needed because JAX takes no plain integer of more
    than 31 bits."""
    return xp.asarray(values, dtype=like.dtype, device=compat.device(like))


def _swap(xp: Namespace, pair: Array) -> Array:
    """The two halves of a pair exchanged; a view where the library supports reversed views."""
    return pair[::-1, ...] if compat.is_numpy_namespace(xp) else xp.flip(pair, axis=0)


def _multiplier(xp: Namespace) -> Callable[[Array, Array, Array], tuple[Array, Array]]:
    """The function that computes the high and the low half of 64-bit products in this library."""
    if compat.is_jax_namespace(xp):
        return _multiply_narrow
    return _multiply_signed if compat.is_torch_namespace(xp) else _multiply_unsigned


def _multiply_unsigned(constant: Array, words: Array, mask: Array) -> tuple[Array, Array]:
    product = constant * words
    low = product & mask
    product >>= 32
    return product, low


def _multiply_signed(constant: Array, words: Array, mask: Array) -> tuple[Array, Array]:
    """The high and low halves of products, computed in signed 64-bit integers. Overflow gives the
    same bits as unsigned products; only the shift extends the sign, which the mask removes."""
    product = constant * words
    return (product >> 32) & mask, product & mask


def _multiply_narrow(constant: Array, words: Array, mask: Array) -> tuple[Array, Array]:
    """The high and low halves of products, computed in 32-bit integers. These drop the high bits of
    a product, so the factors are split into 16-bit halves."""
    a_high, a_low = constant >> 16, constant & 0xFFFF
    b_high, b_low = words >> 16, words & 0xFFFF
    low = a_low * b_low
    middle = a_high * b_low + (low >> 16)
    cross = a_low * b_high + (middle & 0xFFFF)
    return a_high * b_high + (middle >> 16) + (cross >> 16), constant * words
