"""`match` for few rows: one launch in which every row is raced, and the draft compared.

A row is cut into pieces of some blocks, one program each, so that few rows occupy the whole device.
A program times the guesses for its row and a sample of likely winners, reads its piece, and times
what may still win.  The winner of a row is one atomic maximum over its pieces, in any order.  The
last program of a sequence compares the winners with the draft.
"""

import triton
import triton.language as tl

from forerun.gpu.kernels.arithmetic import BLOCK, QUADS, arrive, block_noise, inverse
from forerun.gpu.kernels.keys import (
    HIGHEST,
    LOWEST,
    conclude,
    first_bar,
    needed_logit,
    quad_keys,
    read_quads,
    token_of,
)
from forerun.gpu.kernels.trees import depth_of


@triton.jit(do_not_specialize=["num_sequences", "num_rows"])
def race_kernel(
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
    STEP: tl.constexpr,  # blocks of a piece
    SCOUTS: tl.constexpr,  # blocks whose fastest tokens are timed first
    GANG: tl.constexpr,  # quads that are timed at a time
    ROWS: tl.constexpr,
    TREE: tl.constexpr,
    TRUNCATED: tl.constexpr,
):
    PIECES: tl.constexpr = (V + STEP * BLOCK - 1) // (STEP * BLOCK)
    NUM_BLOCKS: tl.constexpr = (V + BLOCK - 1) // BLOCK
    pid = tl.program_id(0)
    piece = pid % PIECES
    sequence = (pid // PIECES) % num_sequences
    index = pid // PIECES // num_sequences
    first = sequence * num_rows
    place = first + index
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
        row = logits + place.to(tl.int64) * V
        halves = piece * STEP * 2 + tl.arange(0, STEP * 2)
        largest = read_quads(row, halves, V)
        depth = index
        follows = slots == index
        if TREE:
            depth = depth_of(parents + draft, index - 1)
            above = tl.load(parents + draft + slots, mask=slots < num_rows - 1, other=-2)
            follows = above == index - 1
        position += depth
        rate = inverse(temperature)
        greedy = temperature == 0.0
        best, _ = first_bar(
            row,
            tl.where(follows & (slots < length), guesses, -1),
            tl.arange(0, SCOUTS) * NUM_BLOCKS // SCOUTS,
            threshold,
            rate,
            greedy,
            seed,
            position,
            V,
            ROWS > 1,
        )
        minimum, _ = block_noise(seed, position, halves // 2)
        needed = needed_logit(best, minimum, temperature, threshold)
        is_listed = (largest >= needed[None, :]).to(tl.int32)
        in_half = tl.sum(is_listed, axis=0)
        rank = (tl.cumsum(in_half, axis=0) - in_half)[None, :]
        rank += tl.cumsum(is_listed, axis=0) - is_listed
        quads = halves[None, :] * QUADS + tl.arange(0, QUADS)[:, None]
        listed = lists + (place * BLOCKS + piece * STEP) * (2 * QUADS)
        tl.store(listed + rank, quads, mask=is_listed > 0)
        num_listed = tl.sum(in_half, axis=0)
        tl.debug_barrier()  # the list is complete
        start = 0
        while start < num_listed:
            at = start + tl.arange(0, GANG)
            exist = at < num_listed
            some = tl.load(listed + at, mask=exist, other=0, cache_modifier=".cg")
            timed = quad_keys(row, some, exist, threshold, rate, greedy, seed, position, V)
            best = tl.maximum(best, timed)
            start += GANG
        is_here = token_of(best) // (STEP * BLOCK) == piece
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
