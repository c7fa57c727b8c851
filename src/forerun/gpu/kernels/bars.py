"""Which tokens of a row are timed: the logit that a winner of the race must have.

No token arrives before the minimum of its block of 256 allows.  So the key of any token, the bar,
gives for every block the logit that a winner must have, and only the quads of tokens that reach it
are timed.  A bar is the key of a token of the row, so every bar gives the same winner; a higher one
leaves fewer tokens to time.
"""

import triton
import triton.language as tl

from forerun.gpu.kernels.arithmetic import (
    BLOCK,
    HALF,
    QUADS,
    TARGET_BLOCK,
    TINY,
    block_minimum,
    inverse,
    lane_noise,
    load_values,
    logarithm,
    words,
)
from forerun.gpu.kernels.keys import LOWEST, least_score, noisy_key

SLACK = tl.constexpr(1e-4)
"""Above the rounding error of a logarithm, so that a bound cannot exclude the winner."""
KEY_SLACK = tl.constexpr(2.0**-30)
"""Above the part of a score that its key leaves out."""
LOGIT_SLACK = tl.constexpr(2.0**-21)
"""Above the rounding error of a float32 number."""
SMALLEST = tl.constexpr(-3.4028234663852886e38)


@triton.jit
def _fastest(seed, position, blocks):
    """(words of the minima, tokens that have them) of blocks (N,)."""
    drawn, lanes, _, _ = words(seed, position, blocks, TARGET_BLOCK)
    return drawn, blocks * BLOCK + (lanes & 255).to(tl.int32)


@triton.jit
def _guess_bar(row, guesses, threshold, rate, greedy, seed, position, V: tl.constexpr):
    """The largest key of guesses (N,); a guess outside the vocabulary has none."""
    inside = (guesses >= 0) & (guesses < V)
    guesses = tl.where(inside, guesses, 0).to(tl.int32)
    values = load_values(row, guesses, inside, threshold)
    drawn, lane, _, _ = words(seed, position, guesses // BLOCK, TARGET_BLOCK)
    noise = lane_noise(seed, position, guesses, block_minimum(drawn), (lane & 255).to(tl.int32))
    return tl.max(noisy_key(values, rate, tl.where(greedy, 1.0, noise), guesses), axis=0)


@triton.jit
def first_bar(
    row,
    guesses,
    blocks,
    threshold,
    rate,
    greedy,
    seed,
    position,
    V: tl.constexpr,
    GUESSED: tl.constexpr,
):
    """(the largest key of some tokens of a row, the minima of blocks (N,)): of its guesses, and of
    the tokens that have the minimum of these blocks.  Logits are asked for before noise is made."""
    drawn, tokens = _fastest(seed, position, blocks)
    values = load_values(row, tokens, tokens < V, threshold)
    bar = tl.full((), LOWEST, tl.int64)
    if GUESSED:
        bar = _guess_bar(row, guesses, threshold, rate, greedy, seed, position, V)
    minimum = block_minimum(drawn)
    keys = noisy_key(values, rate, tl.where(greedy, 1.0, minimum), tokens)
    return tl.maximum(bar, tl.max(keys, axis=0)), minimum


@triton.jit
def needed_logit(bar, minimum, temperature, threshold):
    """The logit that a token must have to reach the key `bar`, in blocks of these minima (N,)."""
    greedy = temperature == 0.0
    score = least_score(bar)
    score -= SLACK + tl.abs(score) * KEY_SLACK
    noise = tl.where(greedy, 0.0, logarithm(minimum)).to(tl.float64)
    heat = tl.where(greedy, 1.0, tl.maximum(temperature, TINY)).to(tl.float64)
    logit = (score + noise) * heat
    logit = (logit - tl.abs(logit) * LOGIT_SLACK).to(tl.float32)
    return tl.maximum(tl.maximum(logit, threshold), SMALLEST)


@triton.jit
def load_halves(row, halves, V: tl.constexpr):
    """The logits (N, HALF) of half blocks (N,)."""
    columns = halves[:, None] * HALF + tl.arange(0, HALF)[None, :]
    return tl.load(row + columns, mask=columns < V, other=float("-inf"))


@triton.jit
def quad_maxima(logits):
    """The largest of each quad of logits (N, HALF), (QUADS, N); +inf where there is NaN."""
    values = logits.to(tl.float32)
    values = tl.where(values != values, float("inf"), values)
    return tl.trans(tl.max(tl.reshape(values, (logits.shape[0], QUADS, 4)), axis=2))


@triton.jit
def read_quads(row, halves, V: tl.constexpr):
    """The largest logit of each quad of half blocks (N,), (QUADS, N); +inf where there is NaN."""
    return quad_maxima(load_halves(row, halves, V))


@triton.jit
def share_bar(
    row,
    first,
    key,
    guesses,
    temperature,
    threshold,
    seed,
    position,
    V: tl.constexpr,
    HALVES: tl.constexpr,
    GUESSED: tl.constexpr,
):
    """(bar, minima (HALVES,)) of the half blocks from `first` on, a bar of their own tokens.

    The programs of a row share their bars: `key`, where the row's largest key so far stands, is
    raised to this one.  `shared_bar` reads it again.

    guesses: those for this row, -1 where there is none; the ones among the tokens are timed too.
    """
    rate = inverse(temperature)
    greedy = temperature == 0.0
    drawn, tokens = _fastest(seed, position, (first + tl.arange(0, HALVES)) // 2)
    values = load_values(row, tokens, tokens < V, threshold)
    minimum = block_minimum(drawn)
    keys = noisy_key(values, rate, tl.where(greedy, 1.0, minimum), tokens)
    bar = tl.max(keys, axis=0)
    if GUESSED:
        is_here = (guesses >= first * HALF) & (guesses < (first + HALVES) * HALF)
        if tl.max(is_here.to(tl.int32), axis=0) > 0:
            mine = tl.where(is_here, guesses, -1)
            guessed = _guess_bar(row, mine, threshold, rate, greedy, seed, position, V)
            bar = tl.maximum(bar, guessed)
    tl.atomic_max(key, bar, sem="relaxed", scope="gpu")
    return bar, minimum


@triton.jit
def shared_bar(key, bar):
    """The best bar of the programs of a row so far."""
    return tl.maximum(bar, tl.atomic_max(key, bar, sem="relaxed", scope="gpu"))
