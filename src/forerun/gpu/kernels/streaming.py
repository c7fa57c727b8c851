"""`match` for some rows, in one launch: programs that read long pieces and share their bars.

A program times the fastest tokens of all its blocks, and the guess if it is there, and shares the
best with the other programs of the row.  Then it reads its piece step by step, and notes which
quads of tokens may win.  Those it times.
The winner of a row is one atomic maximum over its pieces, in any order; the last program of a
sequence compares the winners with the draft.
"""

import triton
import triton.language as tl

from forerun.gpu.kernels.arithmetic import BLOCK, QUADS, arrive, block_noise, inverse
from forerun.gpu.kernels.bars import needed_logit, read_quads, share_bar, shared_bar
from forerun.gpu.kernels.keys import HIGHEST, LOWEST, conclude, quad_keys, token_of
from forerun.gpu.kernels.trees import depth_of


@triton.jit(do_not_specialize=["num_sequences", "num_rows"])
def stream_kernel(
    logits,  # (B, N, V)
    tokens,  # (B, N - 1) int64
    parents,  # (B, N - 1) int32, for trees
    lengths,  # (B,) int32
    temperatures,  # (B,) float32
    seeds,  # (B,) int64
    positions,  # (B,) int64
    thresholds,  # (B, N) float32, if truncated
    keys,  # (B, N) int64, LOWEST before and after
    lists,  # (B, N, BLOCKS, 2 * QUADS) int32: quads that are timed; a piece has that of its blocks
    finished,  # (B,) int32, zero before and after
    out_reached,  # (B,) int32
    out_accepted,  # (B,) int32
    out_extra,  # (B,) int64
    out_fault,  # (B,) int32
    num_sequences,
    num_rows,
    V: tl.constexpr,
    BLOCKS: tl.constexpr,
    STEP: tl.constexpr,  # blocks that are read at a time
    STEPS: tl.constexpr,  # of a piece, at most 31
    STAGES: tl.constexpr,  # of the pipeline that reads
    GANG: tl.constexpr,  # quads that are timed at a time
    ROWS: tl.constexpr,
    TREE: tl.constexpr,
    TRUNCATED: tl.constexpr,
):
    HALVES: tl.constexpr = STEP * 2
    PIECES: tl.constexpr = (V + STEP * STEPS * BLOCK - 1) // (STEP * STEPS * BLOCK)
    pid = tl.program_id(0)
    piece = pid % PIECES
    sequence = (pid // PIECES) % num_sequences
    index = pid // PIECES // num_sequences
    first = sequence * num_rows
    place = first + index
    draft = sequence * (num_rows - 1)
    slots = tl.arange(0, ROWS)
    row = logits + place.to(tl.int64) * V
    begin = piece * STEPS * HALVES  # the first half block
    halves = tl.arange(0, HALVES)
    length = tl.load(lengths + sequence)
    temperature = tl.load(temperatures + sequence)
    seed = tl.load(seeds + sequence)
    position = tl.load(positions + sequence)
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
        position += depth
        guesses = tl.load(tokens + draft + slots, mask=follows & (slots < length), other=-1)
        best, _minima = share_bar(
            row,
            begin,
            keys + place,
            guesses,
            temperature,
            threshold,
            seed,
            position,
            V,
            STEPS * HALVES,
            ROWS > 1,
        )
        flags = tl.zeros((QUADS, HALVES), tl.int32)  # a bit for each step
        for step in tl.range(STEPS, num_stages=STAGES):
            these = begin + step * HALVES + halves
            largest = read_quads(row, these, V)
            minimum, _lanes = block_noise(seed, position, these // 2)
            best = shared_bar(keys + place, best)
            needed = needed_logit(best, minimum, temperature, threshold)
            flags |= (largest >= needed[None, :]).to(tl.int32) << step
        counts = tl.zeros((QUADS, HALVES), tl.int32)
        for step in tl.static_range(STEPS):
            counts += (flags >> step) & 1
        in_half = tl.sum(counts, axis=0)
        rank = (tl.cumsum(in_half, axis=0) - in_half)[None, :]
        rank += tl.cumsum(counts, axis=0) - counts
        quads = (begin + halves)[None, :] * QUADS + tl.arange(0, QUADS)[:, None]
        listed = lists + (place * BLOCKS + piece * STEPS * STEP).to(tl.int64) * (2 * QUADS)
        for step in tl.static_range(STEPS):
            is_listed = (flags >> step) & 1
            tl.store(listed + rank, quads + step * HALVES * QUADS, mask=is_listed > 0)
            rank += is_listed
        num_listed = tl.sum(in_half, axis=0)
        tl.debug_barrier()  # the list is complete
        rate = inverse(temperature)
        greedy = temperature == 0.0
        start = 0
        while start < num_listed:
            at = start + tl.arange(0, GANG)
            exist = at < num_listed
            some = tl.load(listed + at, mask=exist, other=0, cache_modifier=".cg")
            timed = quad_keys(row, some, exist, threshold, rate, greedy, seed, position, V)
            best = tl.maximum(best, timed)
            start += GANG
        is_here = token_of(best) // (STEP * STEPS * BLOCK) == piece
        if ((best > LOWEST) & is_here) | (best == HIGHEST):
            tl.atomic_max(keys + place, best, sem="relaxed", scope="gpu")
    if arrive(finished + sequence) == num_rows * PIECES - 1:
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
        tl.store(finished + sequence, 0)
