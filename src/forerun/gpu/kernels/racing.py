"""`match`: one launch in which every row of every sequence is raced, and the draft compared.

A row is cut into tiles, one program each.  A program races its tile: segments of 128 tokens that
cannot hold the row's winner are not opened.  A race is decided by whole numbers, the keys of its
tokens, so the winner of a row is one atomic maximum over its tiles, in any order.  The last program
of a row compares the winner with the draft, and the last row of a sequence says how far the draft
was right.
"""

import triton
import triton.language as tl

from forerun.gpu.kernels.arithmetic import (
    BLOCK,
    FAR,
    SEGMENT,
    TARGET,
    arrive,
    block_noise,
    exponential,
    finite,
    inverse,
    lane_noise,
    limit_now,
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


@triton.jit
def _ordered(score):
    """The bits of float64 scores as whole numbers in the same order, the lowest 20 bits set."""
    bits = tl.where(score == 0.0, 0.0, score).to(tl.int64, bitcast=True)  # -0 equals 0
    return tl.where(bits >= 0, bits, bits ^ HIGHEST) | TOKEN_BITS


@triton.jit
def _key(value, score, token):
    """A larger key wins: the larger score, or the lower id where scores agree in 44 bits."""
    return tl.where(finite(value), _ordered(score) - token, LOWEST)


@triton.jit
def _score(value, rate, noise):
    """The logarithm of a token's speed in float64; the product is exact."""
    return value.to(tl.float64) * rate.to(tl.float64) - logarithm(noise).to(tl.float64)


@triton.jit
def _noisy_key(values, rate, noise, tokens):
    return _key(values, _score(values, rate, noise), tokens)


@triton.jit
def _guess_keys(row, guesses, threshold, rate, seed, position, V: tl.constexpr):
    """Keys of any tokens (N,); of tokens outside the vocabulary the lowest."""
    inside = (guesses >= 0) & (guesses < V)
    tokens = tl.where(inside, guesses, 0).to(tl.int32)
    values = load_values(row, tokens, inside, threshold)
    minimum, lane = block_noise(seed, position, tokens // BLOCK)
    return _noisy_key(values, rate, lane_noise(seed, position, tokens, minimum, lane), tokens)


@triton.jit
def _open(
    row,
    segment,
    exists,
    minimum,
    lane,
    threshold,
    rate,
    seed,
    position,
    V: tl.constexpr,
    GANG: tl.constexpr,
):
    """The largest key of segments (GANG,), of those that exist; minimum, lane: of their blocks."""
    quads = segment[:, None] * (SEGMENT // 4) + tl.arange(0, SEGMENT // 4)[None, :]
    first, second, third, fourth = words(seed, position, quads, TARGET)
    bits = tl.join(tl.join(first, third), tl.join(second, fourth))  # the four words of every quad
    rest = exponential(tl.reshape(bits, (GANG, SEGMENT)))
    tokens = segment[:, None] * SEGMENT + tl.arange(0, SEGMENT)[None, :]
    values = load_values(row, tokens, exists[:, None] & (tokens < V), threshold)
    noise = tl.where((tokens & 255) == lane[:, None], minimum[:, None], minimum[:, None] + rest)
    keys = _noisy_key(values, rate, noise, tokens)
    return tl.max(tl.max(keys, axis=1), axis=0)


@triton.jit
def _race(
    row,
    values,
    segments,
    guesses,
    cell,
    threshold,
    rate,
    seed,
    position,
    V: tl.constexpr,
    TILE: tl.constexpr,
    GANG: tl.constexpr,
    GUESSED: tl.constexpr,
    SHARED: tl.constexpr,
):
    """(the largest key of a tile, a key of the row that it must reach to matter).

    values: (TILE, 128) logits of segments (TILE,); NaN was replaced by +inf.
    guesses: drafted tokens for this row.  Often one of them is the winner, and then its key
        excludes nearly every segment.
    cell: the largest key of the row so far.
    """
    best = tl.full((), LOWEST, tl.int64)
    bar = best
    if GUESSED:
        keys = _guess_keys(row, guesses, threshold, rate, seed, position, V)
        bar = tl.max(keys, axis=0)
        begin = tl.min(segments, axis=0) * SEGMENT
        is_here = (guesses >= begin) & (guesses < begin + TILE * SEGMENT)
        best = tl.max(tl.where(is_here, keys, LOWEST), axis=0)
    block = segments // (BLOCK // SEGMENT)
    minimum, lane = block_noise(seed, position, block)
    fastest = block * BLOCK + lane
    keys = _noisy_key(load_values(row, fastest, fastest < V, threshold), rate, minimum, fastest)
    best = tl.maximum(best, tl.max(keys, axis=0))
    if SHARED:  # tell the other tiles of the row early, and hear from them
        bar = tl.maximum(bar, tl.atomic_max(cell, best, sem="relaxed", scope="gpu"))
    largest = tl.max(values, axis=1)
    bounds = _ordered(_score(largest, rate, minimum) + SLACK)  # no key of the segment is larger
    bounds = tl.where(largest > float("-inf"), bounds, LOWEST)
    is_open = (bounds > tl.maximum(best, bar)).to(tl.int32)
    while tl.max(is_open, axis=0) > 0:
        rank = tl.cumsum(is_open, axis=0) * is_open  # 1, 2, ... for open segments, 0 for others
        chosen = rank[None, :] == tl.arange(0, GANG)[:, None] + 1  # (GANG, TILE)
        leader = _open(
            row,
            tl.sum(tl.where(chosen, segments[None, :], 0), axis=1),
            tl.sum(chosen.to(tl.int32), axis=1) > 0,
            tl.sum(tl.where(chosen, minimum[None, :], 0.0), axis=1),
            tl.sum(tl.where(chosen, lane[None, :], 0), axis=1),
            threshold,
            rate,
            seed,
            position,
            V,
            GANG,
        )
        best = tl.maximum(best, leader)
        is_open = ((rank > GANG) & (bounds > tl.maximum(best, bar))).to(tl.int32)
    return tl.where(tl.max(largest, axis=0) == float("inf"), HIGHEST, best), bar


@triton.jit
def _likeliest(row, values, segments, threshold, V: tl.constexpr):
    """The key of the largest logit of a tile, at temperature 0."""
    largest = tl.max(values, axis=1)
    top = tl.max(largest, axis=0)
    segment = tl.min(tl.where(largest == top, segments, FAR), axis=0)
    tokens = segment * SEGMENT + tl.arange(0, SEGMENT)
    inner = load_values(row, tokens, tokens < V, threshold)
    token = tl.min(tl.where(inner == top, tokens, FAR), axis=0)
    key = _key(top, top.to(tl.float64), token)
    return tl.where(top == float("inf"), HIGHEST, key)


@triton.jit
def _depth(parents, node):
    """How many guesses come before what follows a node; the text itself is node -1."""
    depth = 0
    while node >= 0:
        node = tl.load(parents + node).to(tl.int32)
        depth += 1
    return depth


@triton.jit
def _conclude(
    tokens,
    parents,
    length,
    sampled,
    faults,
    limit,
    ROWS: tl.constexpr,
    TREE: tl.constexpr,
):
    """(row reached, tokens accepted, fault) of a sequence whose rows are all decided."""
    reached = 0
    accepted = 0
    if TREE:
        slots = tl.arange(0, ROWS)
        inside = slots < length
        guesses = tl.load(tokens + slots, mask=inside, other=0)
        above = tl.load(parents + slots, mask=inside, other=-2)
        fault = 0
        going_on = True
        while going_on:
            fault = tl.load(faults + reached, cache_modifier=".cg")
            token = tl.load(sampled + reached, cache_modifier=".cg")
            hits = inside & (above == reached - 1) & (guesses == token)
            child = tl.min(tl.where(hits, slots, FAR), axis=0)
            going_on = (child < FAR) & (fault == 0)
            reached = tl.where(going_on, child + 1, reached)
            accepted += going_on.to(tl.int32)
    else:
        reached = tl.load(limit, volatile=True)
        accepted = reached
        fault = tl.load(faults + reached, cache_modifier=".cg")
    return reached, accepted, fault


@triton.jit(do_not_specialize=["num_sequences", "num_rows"])
def match_kernel(
    logits,  # (B, N, V)
    tokens,  # (B, N - 1) int64
    parents,  # (B, N - 1) int32, for trees
    lengths,  # (B,) int32
    temperatures,  # (B,) float32
    seeds,  # (B,) int64
    positions,  # (B,) int64
    thresholds,  # (B, N) float32, if truncated
    keys,  # (B, N) int64, LOWEST before and after
    counts,  # (B, N) int32, zero before and after
    finished,  # (B,) int32, zero before and after
    limits,  # (B,) int32, FAR before and after: no row past it matters
    sampled,  # (B, N) int64
    faults,  # (B, N) int32
    out_reached,  # (B,) int32
    out_accepted,  # (B,) int32
    out_extra,  # (B,) int64
    out_fault,  # (B,) int32
    num_sequences,
    num_rows,
    V: tl.constexpr,
    TILE: tl.constexpr,
    GANG: tl.constexpr,  # segments that are opened at a time
    ROWS: tl.constexpr,
    TREE: tl.constexpr,
    SKIP: tl.constexpr,  # many programs: it pays to look for refusals and for keys of other tiles
    TRUNCATED: tl.constexpr,
):
    TILES: tl.constexpr = (V + TILE * SEGMENT - 1) // (TILE * SEGMENT)
    pid = tl.program_id(0)
    tile = pid % TILES
    sequence = (pid // TILES) % num_sequences
    index = pid // TILES // num_sequences  # rows of all sequences in turn: refusals come early
    length = tl.load(lengths + sequence)
    first = sequence * num_rows
    place = first + index
    slots = tl.arange(0, ROWS)
    nodes = sequence * (num_rows - 1) + slots
    inside = slots < length
    is_read = index <= length
    if SKIP and not TREE:
        is_read = is_read & (index <= limit_now(limits + sequence))
    if is_read:
        row = logits + place.to(tl.int64) * V
        threshold = float("-inf")
        if TRUNCATED:
            threshold = tl.load(thresholds + place)
        segments = tile * TILE + tl.arange(0, TILE)
        columns = segments[:, None] * SEGMENT + tl.arange(0, SEGMENT)[None, :]
        values = load_values(row, columns, columns < V, threshold)
        values = tl.where(values != values, float("inf"), values)
        temperature = tl.load(temperatures + sequence)
        cell = keys + place
        if temperature == 0.0:
            key = _likeliest(row, values, segments, threshold, V)
            bar = key
        else:
            depth = index
            follows = slots == index
            if TREE:
                depth = _depth(parents + sequence * (num_rows - 1), index - 1)
                follows = tl.load(parents + nodes, mask=inside, other=-2) == index - 1
            key, bar = _race(
                row,
                values,
                segments,
                tl.load(tokens + nodes, mask=inside & follows, other=-1),
                cell,
                threshold,
                inverse(temperature),
                tl.load(seeds + sequence),
                tl.load(positions + sequence) + depth,
                V,
                TILE,
                GANG,
                ROWS > 1,
                SKIP,
            )
        if (key >= bar) & (key > LOWEST):
            tl.atomic_max(cell, key, sem="relaxed", scope="gpu")
    if arrive(counts + place) == TILES - 1:  # the last of a row; it may be past a refusal
        key = tl.atomic_xchg(keys + place, LOWEST, sem="relaxed", scope="gpu")
        is_broken = (key == HIGHEST) | (key == LOWEST)
        token = tl.where(is_broken, 0, TOKEN_BITS - (key & TOKEN_BITS))
        is_refused = (index == length) | is_broken
        if index < length:
            guess = tl.load(tokens + sequence * (num_rows - 1) + index)
            is_refused = is_refused | (guess != token)
        tl.store(sampled + place, token)
        tl.store(faults + place, tl.where(is_broken, fault_at(index, TARGET_ROW), 0))
        if not TREE and is_refused:
            tl.atomic_min(limits + sequence, index, sem="relaxed", scope="gpu")
        if arrive(finished + sequence) == num_rows - 1:
            draft = sequence * (num_rows - 1)
            reached, accepted, fault = _conclude(
                tokens + draft,
                parents + draft,
                length,
                sampled + first,
                faults + first,
                limits + sequence,
                ROWS,
                TREE,
            )
            guesses = tl.load(tokens + nodes, mask=inside, other=0)
            tl.store(out_reached + sequence, reached)
            tl.store(out_accepted + sequence, accepted)
            tl.store(out_extra + sequence, tl.load(sampled + first + reached, cache_modifier=".cg"))
            tl.store(out_fault + sequence, outside(guesses, slots, fault, V))
            tl.debug_barrier()  # every warp has read its limit
            tl.store(limits + sequence, FAR)
            tl.store(finished + sequence, 0)
            tl.store(counts + first + slots, tl.zeros((ROWS,), tl.int32), mask=slots < num_rows)
