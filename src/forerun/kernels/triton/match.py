"""`match`: every row is raced, and the draft is compared with the winners.

A row is cut into pieces, one program each.  A program reads its piece at the speed of memory and
computes the arrival of tokens that may win.  The winner of a row is one atomic maximum over its
pieces, in any order; the last program of a sequence compares the winners with the draft.

The bar that a winner must reach comes from tokens that are timed first.  With few rows every
program times the guesses for its row and some scouts, the fastest tokens of blocks all over the
row.  With more rows a launch before this one times the guesses and the fastest tokens of all
blocks, one program a row, while this one is waiting for memory.

A key above that of the guess refuses it: programs of later rows that begin then read nothing.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from forerun.kernels.triton.arithmetic import (
    BLOCK,
    FAR,
    HALF,
    arrive,
    block_noise,
    depth_of,
    inverse,
    limit_now,
)
from forerun.kernels.triton.keys import (
    HIGHEST,
    LOWEST,
    best_hit,
    conclude,
    find_hits,
    guess_key,
    scout_keys,
    write_notes,
)


@triton.jit
def _followers(tokens, parents, index, length, num_rows, ROWS: tl.constexpr, TREE: tl.constexpr):
    """Return the guesses (ROWS,) that directly follow row `index` of a sequence, with -1 in all
    other slots, and the depth of that row.

    tokens, parents: pointers to the entries of this sequence.
    """
    slots = tl.arange(0, ROWS)
    exist = slots < num_rows - 1
    guesses = tl.load(tokens + slots, mask=exist, other=-1)
    depth = index
    follow = slots == index
    if TREE:
        depth = depth_of(parents, index - 1)
        follow = tl.load(parents + slots, mask=exist, other=-2) == index - 1
    return tl.where(follow & (slots < length), guesses, -1), depth


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
    notes,  # (B, N, 3, BLOCKS) float32: what hits are judged by
    rivals,  # (B, N) int64: keys of guesses on chains
    limits,  # (B,) int32, FAR before: no row past it matters
    num_rows,
    V: tl.constexpr,
    BLOCKS: tl.constexpr,
    ROWS: tl.constexpr,
    TREE: tl.constexpr,
    TRUNCATED: tl.constexpr,
    PDL: tl.constexpr,  # whether the next launch may begin at once
):
    """Time the guesses and the fastest tokens of all blocks of a row, and write the notes by which
    `sift_kernel` judges the other tokens."""
    if PDL:
        gdc_launch_dependents()
    place = tl.program_id(0)
    sequence = place // num_rows
    index = place % num_rows
    draft = sequence * (num_rows - 1)
    length = tl.load(lengths + sequence)
    temperature = tl.load(temperatures + sequence)
    seed = tl.load(seeds + sequence)
    position = tl.load(positions + sequence)
    threshold = float("-inf")
    if TRUNCATED:
        threshold = tl.load(thresholds + place)
    if index <= length:
        guesses, depth = _followers(
            tokens + draft, parents + draft, index, length, num_rows, ROWS, TREE
        )
        position += depth
        rate = inverse(temperature)
        greedy = temperature == 0.0
        row = logits + place.to(tl.int64) * V
        blocks = tl.arange(0, BLOCKS)
        keys, minimum, lane = scout_keys(row, blocks, threshold, rate, greedy, seed, position, V)
        bar = tl.max(keys, axis=0)
        if ROWS > 1:
            rival = guess_key(row, guesses, threshold, rate, greedy, seed, position, V)
            if not TREE:
                if (rival < bar) & (index < length):
                    tl.atomic_min(limits + sequence, index, sem="relaxed", scope="gpu")
                tl.store(rivals + place, tl.where(index < length, rival, HIGHEST))
            bar = tl.maximum(bar, rival)
        write_notes(
            notes + place * (3 * BLOCKS), blocks, bar, minimum, lane, temperature, V, BLOCKS
        )


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
    notes,  # (B, N, 3, BLOCKS) float32: what hits are judged by
    rivals,  # (B, N) int64: keys of guesses on chains, if a launch before this one timed them
    limits,  # (B,) int32, FAR before and after: no row past it matters
    keys,  # (B, N) int64, LOWEST before and after
    finished,  # (B,) int32, zero before and after
    out_reached,  # (B,) int32
    out_accepted,  # (B,) int32
    out_extra,  # (B,) int64
    out_fault,  # (B,) int32
    num_sequences,
    num_rows,
    V: tl.constexpr,
    BLOCKS: tl.constexpr,
    LINES: tl.constexpr,  # half blocks that a warp reads
    WARPS: tl.constexpr,
    SCOUTS: tl.constexpr,  # tokens that are timed first; 0: a launch before this one did it
    ROWS: tl.constexpr,
    TREE: tl.constexpr,
    TRUNCATED: tl.constexpr,
    PDL: tl.constexpr,  # whether this launch may begin before the last one ends
):
    """Find the tokens that can beat a row's bar, and decide the sequence when its last row is
    done."""
    HALVES: tl.constexpr = LINES * WARPS
    PIECES: tl.constexpr = (V + HALVES * HALF - 1) // (HALVES * HALF)
    SKIP: tl.constexpr = SCOUTS == 0 and ROWS > 1 and not TREE  # rows past a refusal
    pid = tl.program_id(0)
    piece = pid % PIECES
    sequence = (pid // PIECES) % num_sequences
    index = pid // PIECES // num_sequences  # rows of all sequences in turn: refusals come early
    first = sequence * num_rows
    place = first + index
    draft = sequence * (num_rows - 1)
    length = tl.load(lengths + sequence)
    is_read = index <= length
    if SKIP:
        is_read = is_read & (index <= limit_now(limits + sequence))
    if is_read:
        temperature = tl.load(temperatures + sequence)
        seed = tl.load(seeds + sequence)
        position = tl.load(positions + sequence)
        threshold = float("-inf")
        if TRUNCATED:
            threshold = tl.load(thresholds + place)
        guesses, depth = _followers(
            tokens + draft, parents + draft, index, length, num_rows, ROWS, TREE
        )
        row = logits + place.to(tl.int64) * V
        start = piece * HALVES
        lines = tl.arange(0, LINES)[None, :] * WARPS + tl.arange(0, WARPS)[:, None]
        halves = start + lines
        columns = halves[:, :, None] * HALF + tl.arange(0, HALF)[None, None, :]
        values = tl.load(row + columns, mask=columns < V, other=float("-inf")).to(tl.float32)
        position += depth
        rate = inverse(temperature)
        greedy = temperature == 0.0
        note = notes + place * (3 * BLOCKS)
        if PDL:
            gdc_wait()
        if SCOUTS > 0:
            some = tl.arange(0, SCOUTS) * ((V + BLOCK - 1) // BLOCK) // SCOUTS
            timed, _, _ = scout_keys(row, some, threshold, rate, greedy, seed, position, V)
            bar = tl.max(timed, axis=0)
            if ROWS > 1:
                rival = guess_key(row, guesses, threshold, rate, greedy, seed, position, V)
                bar = tl.maximum(bar, rival)
            blocks = start // 2 + tl.arange(0, HALVES // 2)
            minimum, lane = block_noise(seed, position, blocks)
            write_notes(note, blocks, bar, minimum, lane, temperature, V, BLOCKS)
            tl.debug_barrier()  # through memory, or every thread makes the noise of all its blocks
        needed = tl.load(
            note + halves // 2, mask=halves * HALF < V, other=float("inf"), cache_modifier=".cg"
        )
        if TRUNCATED:
            needed = tl.maximum(needed, threshold)
        best = best_hit(
            find_hits(values, needed, WARPS, LINES), row, start, note, threshold, rate, greedy,
            seed, position, BLOCKS, WARPS,
        )  # fmt: skip
        if best > LOWEST:
            tl.atomic_max(keys + place, best, sem="relaxed", scope="gpu")
            if SKIP:  # noqa: SIM102
                if best > tl.load(rivals + place):  # a condition at run time
                    tl.atomic_min(limits + sequence, index, sem="relaxed", scope="gpu")
    if arrive(finished + sequence) == num_rows * PIECES - 1:
        conclude(
            keys + first, tokens + draft, parents + draft, length, num_rows, out_reached + sequence,
            out_accepted + sequence, out_extra + sequence, out_fault + sequence, V, ROWS, TREE,
        )  # fmt: skip
        tl.store(limits + sequence, FAR)
        tl.store(finished + sequence, 0)
