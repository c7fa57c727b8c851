"""What a race is decided by: the keys of tokens, whole numbers that are larger the sooner they win.

No token arrives before the minimum of its block of 256 allows.  So the key of any token gives for
every block the logit that a winner must have, and only the quads of tokens that reach it are timed.
"""

import triton
import triton.language as tl

from forerun.gpu.kernels.arithmetic import (
    BLOCK,
    FAR,
    HALF,
    QUADS,
    TARGET,
    TARGET_BLOCK,
    TINY,
    at_slot,
    block_minimum,
    exponential,
    finite,
    lane_noise,
    load_values,
    logarithm,
    words,
)
from forerun.gpu.kernels.faults import TARGET_ROW, fault_at, outside

HIGHEST = tl.constexpr(2**63 - 1)
"""The key of a row with NaN or +inf."""
LOWEST = tl.constexpr(-(2**63 - 1))
"""The key of nothing: `keys` between launches, and tokens of probability 0."""
TOKEN_BITS = tl.constexpr(2**20 - 1)
SLACK = tl.constexpr(1e-4)
"""Above the rounding error of a logarithm, so that a bound cannot exclude the winner."""
KEY_SLACK = tl.constexpr(2.0**-30)
"""Above the part of a score that its key leaves out."""
LOGIT_SLACK = tl.constexpr(2.0**-21)
"""Above the rounding error of a float32 number."""
SMALLEST = tl.constexpr(-3.4028234663852886e38)


@triton.jit
def _key(value, score, token):
    """A larger key wins: the larger score, or the lower id where scores agree in 44 bits."""
    bits = tl.where(score == 0.0, 0.0, score).to(tl.int64, bitcast=True)  # -0 equals 0
    ordered = tl.where(bits >= 0, bits, bits ^ HIGHEST) | TOKEN_BITS
    return tl.where(finite(value), ordered - token, LOWEST)


@triton.jit
def _least_score(key):
    """A score that no score of this key is below."""
    ordered = key & ~TOKEN_BITS
    bits = tl.where(ordered >= 0, ordered, ordered ^ HIGHEST)
    return tl.where(key == LOWEST, float("-inf"), bits.to(tl.float64, bitcast=True))


@triton.jit
def noisy_key(values, rate, noise, tokens):
    """Keys of the scores x r - log E in float64; the product is exact."""
    score = values.to(tl.float64) * rate.to(tl.float64) - logarithm(noise).to(tl.float64)
    return _key(values, score, tokens)


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
    drawn, lanes, _, _ = words(seed, position, blocks, TARGET_BLOCK)
    tokens = blocks * BLOCK + (lanes & 255).to(tl.int32)
    values = load_values(row, tokens, tokens < V, threshold)
    bar = tl.full((), LOWEST, tl.int64)
    if GUESSED:
        inside = (guesses >= 0) & (guesses < V)
        guesses = tl.where(inside, guesses, 0).to(tl.int32)
        guess_values = load_values(row, guesses, inside, threshold)
        at, lane, _, _ = words(seed, position, guesses // BLOCK, TARGET_BLOCK)
        noise = lane_noise(seed, position, guesses, block_minimum(at), (lane & 255).to(tl.int32))
        bar = tl.max(noisy_key(guess_values, rate, tl.where(greedy, 1.0, noise), guesses), axis=0)
    minimum = block_minimum(drawn)
    keys = noisy_key(values, rate, tl.where(greedy, 1.0, minimum), tokens)
    return tl.maximum(bar, tl.max(keys, axis=0)), minimum


@triton.jit
def needed_logit(bar, minimum, temperature, threshold):
    """The logit that a token must have to reach the key `bar`, in blocks of these minima (N,)."""
    greedy = temperature == 0.0
    score = _least_score(bar)
    score -= SLACK + tl.abs(score) * KEY_SLACK
    noise = tl.where(greedy, 0.0, logarithm(minimum)).to(tl.float64)
    heat = tl.where(greedy, 1.0, tl.maximum(temperature, TINY)).to(tl.float64)
    logit = (score + noise) * heat
    logit = (logit - tl.abs(logit) * LOGIT_SLACK).to(tl.float32)
    return tl.maximum(tl.maximum(logit, threshold), SMALLEST)


@triton.jit
def read_quads(row, halves, V: tl.constexpr):
    """The largest logit of each quad of half blocks (N,), (QUADS, N); +inf where there is NaN."""
    columns = halves[:, None] * HALF + tl.arange(0, HALF)[None, :]
    values = tl.load(row + columns, mask=columns < V, other=float("-inf")).to(tl.float32)
    values = tl.where(values != values, float("inf"), values)
    return tl.trans(tl.max(tl.reshape(values, (halves.shape[0], QUADS, 4)), axis=2))


@triton.jit
def quad_keys(row, quads, exist, threshold, rate, greedy, seed, position, V: tl.constexpr):
    """The largest key of the tokens of quads (N,), of those that exist; the highest of all where
    there is NaN or +inf."""
    tokens = quads[:, None] * 4 + tl.arange(0, 4)[None, :]
    values = load_values(row, tokens, exist[:, None] & (tokens < V), threshold)
    drawn, lane, _, _ = words(seed, position, quads * 4 // BLOCK, TARGET_BLOCK)
    first, second, third, fourth = words(seed, position, quads, TARGET)
    bits = tl.join(tl.join(first, third), tl.join(second, fourth))
    rest = exponential(tl.reshape(bits, (quads.shape[0], 4)))
    minimum = block_minimum(drawn)[:, None]
    is_fastest = (tokens & 255) == (lane & 255).to(tl.int32)[:, None]
    noise = tl.where(is_fastest, minimum, minimum + rest)
    keys = noisy_key(values, rate, tl.where(greedy, 1.0, noise), tokens)
    keys = tl.where(values < float("inf"), keys, HIGHEST)
    return tl.max(tl.max(keys, axis=1), axis=0)


@triton.jit
def token_of(key):
    """The token of a key, 0 if it is of none."""
    return tl.where((key == HIGHEST) | (key == LOWEST), 0, TOKEN_BITS - (key & TOKEN_BITS))


@triton.jit
def _compare(keys, guesses, above, slots, length, TREE: tl.constexpr):
    """(row reached, tokens accepted, extra token, fault) from the winners of all rows (ROWS,).

    guesses, above: the nodes of the draft and their parents, -2 for those that do not count.
    """
    is_broken = (keys == HIGHEST) | (keys == LOWEST)
    winners = token_of(keys)
    if TREE:
        reached = 0
        accepted = 0
        going_on = True
        while going_on:
            is_hit = (above == reached - 1) & (guesses == at_slot(winners, slots, reached))
            child = tl.min(tl.where(is_hit, slots, FAR), axis=0)
            going_on = (child < FAR) & (at_slot(is_broken.to(tl.int32), slots, reached) == 0)
            reached = tl.where(going_on, child + 1, reached)
            accepted += going_on.to(tl.int32)
    else:
        is_hit = (slots < length) & (guesses == winners) & (is_broken == 0)
        reached = tl.min(tl.where(is_hit, FAR, slots), axis=0)
        accepted = reached
    is_wrong = at_slot(is_broken.to(tl.int32), slots, reached) != 0
    fault = tl.where(is_wrong, fault_at(reached, TARGET_ROW), 0)
    return reached, accepted, at_slot(winners, slots, reached), fault


@triton.jit
def conclude(
    keys,
    tokens,
    parents,
    length,
    num_rows,
    out_reached,
    out_accepted,
    out_extra,
    out_fault,
    V: tl.constexpr,
    ROWS: tl.constexpr,
    TREE: tl.constexpr,
):
    """Say how far the draft of a sequence was right, whose rows are all decided, and forget them.

    All pointers are to what the sequence has.
    """
    slots = tl.arange(0, ROWS)
    inside = slots < length
    winners = tl.load(keys + slots, mask=slots <= length, other=LOWEST, cache_modifier=".cg")
    guesses = tl.load(tokens + slots, mask=inside, other=-2)
    above = guesses
    if TREE:
        above = tl.load(parents + slots, mask=inside, other=-2)
    reached, accepted, extra, fault = _compare(winners, guesses, above, slots, length, TREE)
    tl.store(out_reached, reached)
    tl.store(out_accepted, accepted)
    tl.store(out_extra, extra)
    tl.store(out_fault, outside(tl.where(inside, guesses, 0), slots, fault, V))
    tl.debug_barrier()  # every warp has read the keys
    tl.store(keys + slots, tl.full((ROWS,), LOWEST, tl.int64), mask=slots < num_rows)
