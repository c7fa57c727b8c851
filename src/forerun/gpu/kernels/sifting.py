"""`match` for many rows, in two launches: what a winner must have, and who has it.

The first, one program a row, times the guesses and the fastest token of every block, and writes for
every block the logit that a winner must have.  The second reads rows, at the speed of memory, and
lists the quads of tokens that reach it.  Whoever finishes a row last times the list and compares
the winner with the draft; whoever finishes a sequence last says how far the draft was right.
Programs of rows past a refusal that is already known read nothing.
"""

import triton
import triton.language as tl

from forerun.gpu.kernels.arithmetic import BLOCK, FAR, QUADS, arrive, inverse, limit_now
from forerun.gpu.kernels.keys import (
    LOWEST,
    conclude,
    first_bar,
    needed_logit,
    quad_keys,
    read_quads,
    token_of,
)
from forerun.gpu.kernels.trees import depth_of


@triton.jit(do_not_specialize=["num_rows"])
def bar_kernel(
    logits,  # (B, N, V)
    tokens,  # (B, N - 1) int64
    parents,  # (B, N - 1) int32, for trees
    lengths,  # (B,) int32
    temperatures,  # (B,) float32
    seeds,  # (B,) int64
    positions,  # (B,) int64
    thresholds,  # (B, N) float32, if truncated
    bars,  # (B, N, BLOCKS) float32: the logit that a winner must have in each block
    num_rows,
    V: tl.constexpr,
    BLOCKS: tl.constexpr,
    ROWS: tl.constexpr,
    TREE: tl.constexpr,
    TRUNCATED: tl.constexpr,
):
    place = tl.program_id(0)
    sequence = place // num_rows
    index = place % num_rows
    draft = sequence * (num_rows - 1)
    slots = tl.arange(0, ROWS)
    length = tl.load(lengths + sequence)
    temperature = tl.load(temperatures + sequence)
    seed = tl.load(seeds + sequence)
    position = tl.load(positions + sequence)
    guesses = tl.load(tokens + draft + slots, mask=slots < num_rows - 1, other=-1)
    threshold = float("-inf")
    if TRUNCATED:
        threshold = tl.load(thresholds + place)
    if index <= length:
        depth = index
        follows = slots == index
        if TREE:
            depth = depth_of(parents + draft, index - 1)
            above = tl.load(parents + draft + slots, mask=slots < num_rows - 1, other=-2)
            follows = above == index - 1
        blocks = tl.arange(0, BLOCKS)
        bar, minimum = first_bar(
            logits + place.to(tl.int64) * V,
            tl.where(follows & (slots < length), guesses, -1),
            blocks,
            threshold,
            inverse(temperature),
            temperature == 0.0,
            seed,
            position + depth,
            V,
            ROWS > 1,
        )
        needed = needed_logit(bar, minimum, temperature, threshold)
        tl.store(bars + place * BLOCKS + blocks, needed)


@triton.jit(do_not_specialize=["num_sequences", "num_rows"])
def sift_kernel(
    logits,  # (B, N, V)
    tokens,  # (B, N - 1) int64
    parents,  # (B, N - 1) int32, for trees
    lengths,  # (B,) int32
    temperatures,  # (B,) float32
    seeds,  # (B,) int64
    positions,  # (B,) int64
    thresholds,  # (B, N) float32, if truncated
    keys,  # (B, N) int64, LOWEST before and after
    bars,  # (B, N, BLOCKS) float32
    lists,  # (B, N, LIST) int32: quads that are timed
    list_counts,  # (B, N) int32, zero before and after
    counts,  # (B, N) int32, zero before and after
    finished,  # (B,) int32, zero before and after
    limits,  # (B,) int32, FAR before and after: no row past it matters
    out_reached,  # (B,) int32
    out_accepted,  # (B,) int32
    out_extra,  # (B,) int64
    out_fault,  # (B,) int32
    num_sequences,
    num_rows,
    V: tl.constexpr,
    BLOCKS: tl.constexpr,
    LIST: tl.constexpr,
    STEP: tl.constexpr,  # blocks that are read at a time
    STEPS: tl.constexpr,
    STAGES: tl.constexpr,  # of the pipeline that reads
    GANG: tl.constexpr,  # quads that are timed at a time
    ROWS: tl.constexpr,
    TREE: tl.constexpr,
    SKIP: tl.constexpr,  # whether to look for refusals first; pays where programs wait their turn
    TRUNCATED: tl.constexpr,
):
    PIECES: tl.constexpr = (V + STEP * STEPS * BLOCK - 1) // (STEP * STEPS * BLOCK)
    pid = tl.program_id(0)
    piece = pid % PIECES
    sequence = (pid // PIECES) % num_sequences
    index = pid // PIECES // num_sequences  # rows of all sequences in turn: refusals come early
    first = sequence * num_rows
    place = first + index
    draft = sequence * (num_rows - 1)
    row = logits + place.to(tl.int64) * V
    listed = lists + place.to(tl.int64) * LIST
    length = tl.load(lengths + sequence)
    temperature = tl.load(temperatures + sequence)
    seed = tl.load(seeds + sequence)
    position = tl.load(positions + sequence)
    is_read = index <= length
    if SKIP and not TREE:
        is_read = is_read & (index <= limit_now(limits + sequence))
    if is_read:
        for step in tl.range(STEPS, num_stages=STAGES):
            halves = (piece * STEPS + step) * STEP * 2 + tl.arange(0, STEP * 2)
            needed = tl.load(bars + place * BLOCKS + halves // 2)
            largest = read_quads(row, halves, V)
            is_listed = largest >= needed[None, :]
            quads = halves[None, :] * QUADS + tl.arange(0, QUADS)[:, None]
            counter = list_counts + place + quads * 0
            at = tl.atomic_add(counter, 1, mask=is_listed, sem="relaxed", scope="gpu")
            tl.store(listed + at, quads, mask=is_listed & (at < LIST))
    if arrive(counts + place) == PIECES - 1:  # the last of a row; it may be past a refusal
        num_listed = tl.atomic_xchg(list_counts + place, 0, sem="relaxed", scope="gpu")
        if is_read:
            threshold = float("-inf")
            if TRUNCATED:
                threshold = tl.load(thresholds + place)
            depth = index
            if TREE:
                depth = depth_of(parents + draft, index - 1)
            position += depth
            is_full = num_listed > LIST  # then every quad of the row is timed
            num_listed = tl.where(is_full, BLOCKS * 2 * QUADS, num_listed)
            best = tl.full((), LOWEST, tl.int64)
            start = 0
            while start < num_listed:
                at = start + tl.arange(0, GANG)
                exist = at < num_listed
                some = tl.load(
                    listed + at, mask=exist & (is_full == 0), other=0, cache_modifier=".cg"
                )
                timed = quad_keys(
                    row,
                    tl.where(is_full, at, some),
                    exist,
                    threshold,
                    inverse(temperature),
                    temperature == 0.0,
                    seed,
                    position,
                    V,
                )
                best = tl.maximum(best, timed)
                start += GANG
            tl.store(keys + place, best)
            if SKIP and not TREE:
                guess = tl.load(tokens + draft + index, mask=index < length, other=0)
                if guess != token_of(best):
                    tl.atomic_min(limits + sequence, index, sem="relaxed", scope="gpu")
        if arrive(finished + sequence) == num_rows - 1:
            conclude(
                keys + first,
                tokens + draft,
                parents + draft,
                length,
                num_rows,
                out_reached + sequence,
                out_accepted + sequence,
                out_extra + sequence,
                out_fault + sequence,
                V,
                ROWS,
                TREE,
            )
            slots = tl.arange(0, ROWS)
            tl.store(limits + sequence, FAR)
            tl.store(finished + sequence, 0)
            tl.store(counts + first + slots, tl.zeros((ROWS,), tl.int32), mask=slots < num_rows)
