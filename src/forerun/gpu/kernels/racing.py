"""`match`: one launch in which every row of every sequence is raced, and the draft compared.

Programs first reduce tiles of a row to the largest logit of every block of 256 tokens: that is all
the reading of the row.  Whoever finishes a row last races it: blocks that cannot hold the winner
are never opened.  Whoever finishes a sequence last says how far its draft was right.
"""

import triton
import triton.language as tl

from forerun.gpu.kernels.arithmetic import (
    BLOCK,
    FAR,
    arrive,
    block_noise,
    finite,
    inverse,
    lane_noise,
    likeliest,
    limit_now,
    load_values,
    logarithm,
)
from forerun.gpu.kernels.faults import TARGET_ROW, fault_at, outside


@triton.jit
def _score(value, best, rate, noise):
    """The logarithm of a token's speed, the likeliest token's weight being 1."""
    return (value - best) * rate - logarithm(noise)


@triton.jit
def race(row, maxima, best, rate, threshold, seed, position, V: tl.constexpr, BLOCKS: tl.constexpr):
    """The winner of a row's race: the token of the largest score, the lowest id on ties.

    maxima: (BLOCKS,) the largest logit of every block; best: the largest of them.
    """
    blocks = tl.arange(0, BLOCKS)
    minimum, lane = block_noise(seed, position, blocks)
    fastest = blocks * BLOCK + lane
    values = load_values(row, fastest, fastest < V, threshold)
    scores = _score(values, best, rate, minimum)
    score = tl.max(scores, axis=0)
    token = tl.min(tl.where(scores == score, fastest, FAR), axis=0)
    bounds = _score(maxima, best, rate, minimum)  # no token of the block has a larger score
    top = tl.max(bounds, axis=0)
    # The slack is above the rounding of a score, so that it cannot leave out the winner.
    while (top > float("-inf")) & (top + 1e-4 + 1e-5 * tl.abs(top) >= score):
        block = tl.min(tl.where(bounds == top, blocks, FAR), axis=0)
        here = blocks == block
        least = tl.sum(tl.where(here, minimum, 0.0), axis=0)
        which = tl.sum(tl.where(here, lane, 0), axis=0)
        tokens = block * BLOCK + tl.arange(0, BLOCK)
        inner = load_values(row, tokens, tokens < V, threshold)
        noise = lane_noise(seed, position, tokens, least, which)
        times = _score(inner, best, rate, noise)
        leader = tl.max(times, axis=0)
        winner = tl.min(tl.where(times == leader, tokens, FAR), axis=0)
        wins = (leader > score) | ((leader == score) & (winner < token))
        token = tl.where(wins, winner, token)
        score = tl.where(wins, leader, score)
        bounds = tl.where(here, float("-inf"), bounds)
        top = tl.max(bounds, axis=0)
    return token


@triton.jit
def _depth(parents, node):
    """How many guesses come before what follows a node; the text itself is node -1."""
    depth = 0
    while node >= 0:
        node = tl.load(parents + node).to(tl.int32)
        depth += 1
    return depth


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
    maxima,  # (B, N, BLOCKS) float32
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
    BLOCKS: tl.constexpr,
    TILE: tl.constexpr,
    ROWS: tl.constexpr,
    TREE: tl.constexpr,
    SKIP: tl.constexpr,  # whether to look for refusals first; pays where programs wait their turn
    TRUNCATED: tl.constexpr,
):
    TILES: tl.constexpr = (V + TILE * BLOCK - 1) // (TILE * BLOCK)
    pid = tl.program_id(0)
    tile = pid % TILES
    sequence = (pid // TILES) % num_sequences
    index = pid // TILES // num_sequences  # rows of all sequences in turn: refusals come early
    length = tl.load(lengths + sequence)
    place = sequence * num_rows + index
    row = logits + place.to(tl.int64) * V
    wanted = index <= length
    if SKIP and not TREE:
        wanted = wanted & (index <= limit_now(limits + sequence))
    if wanted:
        threshold = float("-inf")
        if TRUNCATED:
            threshold = tl.load(thresholds + place)
        blocks = tile * TILE + tl.arange(0, TILE)
        columns = blocks[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
        values = load_values(row, columns, columns < V, threshold)
        largest = tl.max(values, axis=1)
        has_nan = tl.max((values != values).to(tl.int32), axis=1) > 0
        largest = tl.where(has_nan, float("nan"), largest)
        tl.store(maxima + place * BLOCKS + blocks, largest, mask=blocks < BLOCKS)
        if arrive(counts + place) == TILES - 1:
            every = tl.arange(0, BLOCKS)
            known = tl.load(
                maxima + place * BLOCKS + every,
                mask=every < TILES * TILE,
                other=float("-inf"),
                cache_modifier=".cg",
            )
            best = tl.max(known, axis=0)
            is_broken = tl.max((known != known).to(tl.int32), axis=0) > 0
            fault = tl.where(is_broken | (finite(best) == 0), fault_at(index, TARGET_ROW), 0)
            token = index * 0
            if fault == 0:
                temperature = tl.load(temperatures + sequence)
                if temperature == 0.0:
                    token = likeliest(row, known, best, threshold, V, BLOCKS)
                else:
                    depth = index
                    if TREE:
                        depth = _depth(parents + sequence * (num_rows - 1), index - 1)
                    token = race(
                        row,
                        known,
                        best,
                        inverse(temperature),
                        threshold,
                        tl.load(seeds + sequence),
                        tl.load(positions + sequence) + depth,
                        V,
                        BLOCKS,
                    )
            is_refused = (index == length) | (fault != 0)
            if index < length:
                guess = tl.load(tokens + sequence * (num_rows - 1) + index)
                is_refused = is_refused | (guess != token)
            tl.store(sampled + place, token.to(tl.int64))
            tl.store(faults + place, fault)
            if not TREE and is_refused:
                tl.atomic_min(limits + sequence, index)
    if arrive(finished + sequence) == num_rows * TILES - 1:
        first = sequence * num_rows
        reached = 0
        accepted = 0
        fault = 0
        slots = tl.arange(0, ROWS)
        nodes = sequence * (num_rows - 1) + slots
        inside = slots < length
        guesses = tl.load(tokens + nodes, mask=inside, other=0)
        if TREE:
            above = tl.load(parents + nodes, mask=inside, other=-2)
            going_on = True
            while going_on:
                fault = tl.load(faults + first + reached, cache_modifier=".cg")
                token = tl.load(sampled + first + reached, cache_modifier=".cg")
                hits = inside & (above == reached - 1) & (guesses == token)
                child = tl.min(tl.where(hits, slots, FAR), axis=0)
                going_on = (child < FAR) & (fault == 0)
                reached = tl.where(going_on, child + 1, reached)
                accepted += going_on.to(tl.int32)
        else:
            reached = tl.load(limits + sequence, volatile=True)
            accepted = reached
            fault = tl.load(faults + first + reached, cache_modifier=".cg")
        tl.store(out_reached + sequence, reached)
        tl.store(out_accepted + sequence, accepted)
        tl.store(out_extra + sequence, tl.load(sampled + first + reached, cache_modifier=".cg"))
        tl.store(out_fault + sequence, outside(guesses, slots, fault, V))
        tl.debug_barrier()  # every warp has read its limit
        tl.store(limits + sequence, FAR)
        tl.store(finished + sequence, 0)
        tl.store(counts + first + slots, tl.zeros((ROWS,), tl.int32), mask=slots < num_rows)
