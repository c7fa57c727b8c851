"""The keys of tokens, whole numbers that decide a race: the largest key wins.

No token arrives before the minimum of its block of 256 allows.  So the key of any token, the bar,
gives for every block the logit that a winner must have.  Tokens that have it are hits.  The arrival
of a hit is computed in full only if its own random number is small enough for the bar, which few
are.
"""

import triton
import triton.language as tl

from forerun.kernels.triton.arithmetic import (
    BLOCK,
    FAR,
    HALF,
    LANES,
    LOG2_E,
    TARGET,
    TARGET_BLOCK,
    TINY,
    at_slot,
    block_minimum,
    block_noise,
    exponential,
    finite,
    lane_noise,
    load_values,
    logarithm,
    word,
    words,
)

TARGET_ROW = tl.constexpr(1)
DRAFT_ROW = tl.constexpr(2)
IMPOSSIBLE = tl.constexpr(3)
OUTSIDE = tl.constexpr(4)


@triton.jit
def fault_at(slot, KIND: tl.constexpr):
    """The fault of a kind at a slot."""
    return slot * 16 + KIND


@triton.jit
def outside(guesses, slots, fault, V: tl.constexpr):
    """The fault of the first guess outside the vocabulary; the given fault if there is none."""
    first = tl.min(tl.where((guesses < 0) | (guesses >= V), slots, FAR), axis=0)
    return tl.where(first < FAR, fault_at(first, OUTSIDE), fault)


HIGHEST = tl.constexpr(2**63 - 1)
"""The key of a row that contains NaN or +inf, above all other keys."""
LOWEST = tl.constexpr(-(2**63 - 1))
"""The key of tokens of probability 0, and the value of `keys` between launches."""
TOKEN_BITS = tl.constexpr(2**20 - 1)
SLACK = tl.constexpr(1e-4)
"""Lowers the score that the bar stands for by more than the rounding error of a logarithm, so that
no bar excludes the winner."""
KEY_SLACK = tl.constexpr(2.0**-30)
"""An upper bound of the part of a score that its key leaves out, relative to the score."""
LOGIT_SLACK = tl.constexpr(2.0**-21)
"""An upper bound of the rounding error of a needed logit, relative to the logit."""
TIME_SLACK = tl.constexpr(1.001)
"""Raises the upper bound of a token's exponential by more than its rounding error."""
SMALLEST = tl.constexpr(-3.4028234663852886e38)


@triton.jit
def _key(value, score, token):
    """The key of a score: larger for a larger score, and, if scores agree in 44 bits, for a lower
    id."""
    bits = tl.where(score == 0.0, 0.0, score).to(tl.int64, bitcast=True)  # -0 equals 0
    ordered = tl.where(bits >= 0, bits, bits ^ HIGHEST) | TOKEN_BITS
    return tl.where(finite(value), ordered - token, LOWEST)


@triton.jit
def _least_score(key):
    """A lower bound of all scores with this key."""
    ordered = key & ~TOKEN_BITS
    bits = tl.where(ordered >= 0, ordered, ordered ^ HIGHEST)
    return tl.where(key == LOWEST, float("-inf"), bits.to(tl.float64, bitcast=True))


@triton.jit
def noisy_key(values, rate, noise, tokens):
    """Return the keys of tokens whose scores are logit * rate - log(noise), in float64, where the
    product is exact."""
    score = values.to(tl.float64) * rate.to(tl.float64) - logarithm(noise).to(tl.float64)
    return _key(values, score, tokens)


@triton.jit
def scout_keys(row, blocks, threshold, rate, greedy, seed, position, V: tl.constexpr):
    """Return (keys, minima, lanes) for blocks (N,): the smallest noise of each block, the lane of
    the token that has it, and that token's key. Logits are loaded before noise is computed."""
    drawn, second, _, _ = words(seed, position, blocks, TARGET_BLOCK)
    lane = (second & 255).to(tl.int32)
    tokens = blocks * BLOCK + lane
    values = load_values(row, tokens, tokens < V, threshold)
    minimum = block_minimum(drawn)
    keys = noisy_key(values, rate, tl.where(greedy, 1.0, minimum), tokens)
    return keys, minimum, lane


@triton.jit
def guess_key(row, guesses, threshold, rate, greedy, seed, position, V: tl.constexpr):
    """The largest key of guesses (N,) for a row; those outside the vocabulary have none."""
    inside = (guesses >= 0) & (guesses < V)
    guesses = tl.where(inside, guesses, 0).to(tl.int32)
    values = load_values(row, guesses, inside, threshold)
    minimum, lane = block_noise(seed, position, guesses // BLOCK)
    noise = lane_noise(seed, position, guesses, minimum, lane)
    return tl.max(noisy_key(values, rate, tl.where(greedy, 1.0, noise), guesses), axis=0)


@triton.jit
def _needed_logit(bar, minimum, temperature):
    """The logit that a token must have to reach the key `bar`, in blocks of these minima (N,)."""
    greedy = temperature == 0.0
    score = _least_score(bar)
    score -= SLACK + tl.abs(score) * KEY_SLACK
    noise = tl.where(greedy, 0.0, logarithm(minimum)).to(tl.float64)
    heat = tl.where(greedy, 1.0, tl.maximum(temperature, TINY)).to(tl.float64)
    logit = (score + noise) * heat
    return tl.maximum((logit - tl.abs(logit) * LOGIT_SLACK).to(tl.float32), SMALLEST)


@triton.jit
def write_notes(
    notes, blocks, bar, minimum, lane, temperature, V: tl.constexpr, SIZE: tl.constexpr
):
    """Write into notes (3, SIZE), for blocks (N,), the numbers by which hits are judged: the needed
    logits, the minima of noise, and their lanes."""
    inside = blocks * BLOCK < V
    tl.store(notes + blocks, _needed_logit(bar, minimum, temperature), mask=inside)
    tl.store(notes + SIZE + blocks, minimum, mask=inside)
    tl.store(notes + 2 * SIZE + blocks, lane.to(tl.float32), mask=inside)


@triton.jit
def find_hits(values, needed, WARPS: tl.constexpr, LINES: tl.constexpr):
    """Return the hits (tokens whose logit reaches the needed one) as a bit mask for each thread,
    (threads,). Bit 4 i + k stands for the k-th of the thread's four tokens in line i.

    values: (WARPS, LINES, HALF); needed: (WARPS, LINES).  NaN is a hit.
    """
    is_hit = tl.reshape((values < needed[:, :, None]) == 0, (WARPS, LINES, LANES, 4))
    bit = tl.arange(0, LINES)[None, :, None, None] * 4 + tl.arange(0, 4)[None, None, None, :]
    one = tl.full((1, 1, 1, 1), 1, tl.int64 if LINES > 8 else tl.int32)
    hits = tl.sum(tl.sum(tl.where(is_hit, one << bit, 0), axis=3), axis=1)
    return tl.reshape(hits, (WARPS * LANES,))


@triton.jit
def _lowest_bit(bits):
    """Return the lowest set bit of every entry, as a number with only that bit set and as its
    position."""
    low = bits & -bits
    exponent = (low.to(tl.float64).to(tl.int64, bitcast=True) >> 52) & 0x7FF
    return low, (exponent - 1023).to(tl.int32)


@triton.jit
def _reach_bar(values, tokens, notes, drawn, rate, greedy, SIZE: tl.constexpr):
    """Return three values for each token: whether it may reach the bar, the minimum of noise in its
    block, and whether it is the token with this minimum.

    The exponential of a token is at least its uniform number u, and must not exceed the bound that
    follows from its logit and the needed one.
    """
    blocks = tokens // BLOCK
    needed = tl.load(notes + blocks, cache_modifier=".cg")
    minimum = tl.load(notes + SIZE + blocks, cache_modifier=".cg")
    lane = tl.load(notes + 2 * SIZE + blocks, cache_modifier=".cg")
    is_fastest = (tokens & 255) == lane.to(tl.int32)
    most = minimum * tl.exp2((values - needed) * (rate * LOG2_E)) * TIME_SLACK
    most = tl.where(greedy, float("inf"), most)
    least = minimum + drawn.to(tl.float32) * 2.3283064365386963e-10
    is_broken = (values < float("inf")) == 0
    return (least <= most) | is_fastest | is_broken, minimum, is_fastest


@triton.jit
def best_hit(
    hits,
    row,
    start,
    notes,
    threshold,
    rate,
    greedy,
    seed,
    position,
    SIZE: tl.constexpr,
    WARPS: tl.constexpr,
):
    """The largest key of hits that reach the bar; HIGHEST if there is NaN or +inf.

    Each thread judges its hits one after the other.  start: the first half block that was read.
    """
    places = tl.arange(0, WARPS * LANES) * 4
    best = tl.full((WARPS * LANES,), LOWEST, tl.int64)
    are_left = tl.max((hits != 0).to(tl.int32), axis=0)
    while are_left > 0:
        low, number = _lowest_bit(hits)
        exist = hits != 0
        tokens = (start + (number >> 2) * WARPS) * HALF + places + (number & 3)
        tokens = tl.where(exist, tokens, start * HALF)
        values = load_values(row, tokens, exist, threshold)
        drawn = word(seed, position, tokens, TARGET)
        can_win, minimum, is_fastest = _reach_bar(values, tokens, notes, drawn, rate, greedy, SIZE)
        can_win = can_win & exist
        if tl.max(can_win.to(tl.int32), axis=0) > 0:
            noise = tl.where(is_fastest, minimum, minimum + exponential(drawn))
            keys = noisy_key(values, rate, tl.where(greedy, 1.0, noise), tokens)
            keys = tl.where(values < float("inf"), keys, HIGHEST)
            best = tl.maximum(best, tl.where(can_win, keys, LOWEST))
        hits = hits ^ low
        are_left = tl.max((hits != 0).to(tl.int32), axis=0)
    return tl.max(best, axis=0)


@triton.jit
def token_of(key):
    """The token of a key; 0 for HIGHEST and LOWEST, which are keys of no token."""
    return tl.where((key == HIGHEST) | (key == LOWEST), 0, TOKEN_BITS - (key & TOKEN_BITS))


@triton.jit
def _compare(keys, guesses, above, slots, length, TREE: tl.constexpr):
    """Return (row reached, tokens accepted, extra token, fault), given the keys of the winners of
    all rows (ROWS,).

    guesses, above: the tokens of the draft and their parent nodes; a parent of -2 marks a node that
    does not count.
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
    """Write the outcome of a sequence whose rows are all decided, and reset their keys.

    All pointers are to the entries of this sequence.
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
