"""`match`: one launch in which every row of every sequence is raced, and the draft compared.

A row is cut into pieces of whole blocks of 256 tokens, one program each.  A program first times a
few tokens that may well win: the drafted ones, and those that have the minimum of their blocks.  No
token arrives before the minimum of its block allows, so the best of these times is a logit for
every block that a winner must have.  Then it reads its piece, lists the quads of tokens that reach
that logit, and times only these.  A race is decided by whole numbers, the keys of its tokens, so
the winner of a row is one atomic maximum over its pieces, in any order.  The last program of a
sequence compares the winners with the draft.
"""

import triton
import triton.language as tl

from forerun.gpu.kernels.arithmetic import (
    BLOCK,
    FAR,
    QUADS,
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
from forerun.gpu.kernels.trees import depth_of

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
def _noisy_key(values, rate, noise, tokens):
    """Keys of the scores x r - log E in float64; the product is exact."""
    score = values.to(tl.float64) * rate.to(tl.float64) - logarithm(noise).to(tl.float64)
    return _key(values, score, tokens)


@triton.jit
def _guess_keys(row, guesses, threshold, rate, greedy, seed, position, V: tl.constexpr):
    """Keys of any tokens (N,); of tokens outside the vocabulary the lowest."""
    inside = (guesses >= 0) & (guesses < V)
    tokens = tl.where(inside, guesses, 0).to(tl.int32)
    values = load_values(row, tokens, inside, threshold)
    minimum, lane = block_noise(seed, position, tokens // BLOCK)
    noise = lane_noise(seed, position, tokens, minimum, lane)
    return _noisy_key(values, rate, tl.where(greedy, 1.0, noise), tokens)


@triton.jit
def _fastest_keys(row, blocks, minimum, lane, threshold, rate, greedy, V: tl.constexpr):
    """Keys of the tokens that have the minimum of their blocks (N,)."""
    tokens = blocks * BLOCK + lane
    values = load_values(row, tokens, tokens < V, threshold)
    return _noisy_key(values, rate, tl.where(greedy, 1.0, minimum), tokens)


@triton.jit
def _needed(bar, minimum, rate, greedy, threshold):
    """The logit that a token must have to reach the key `bar`, in blocks of these minima (N,)."""
    score = _least_score(bar)
    score -= SLACK + tl.abs(score) * KEY_SLACK
    noise = tl.where(greedy, 0.0, logarithm(minimum)).to(tl.float64)
    logit = (score + noise) / rate.to(tl.float64)
    logit = (logit - tl.abs(logit) * LOGIT_SLACK).to(tl.float32)
    return tl.maximum(tl.maximum(logit, threshold), SMALLEST)


@triton.jit
def _quad_keys(row, quads, exist, threshold, rate, greedy, seed, position, V: tl.constexpr):
    """Keys (N, 4) of the tokens of quads (N,), of those that exist; the highest of NaN and +inf."""
    minimum, lane = block_noise(seed, position, quads // QUADS)
    first, second, third, fourth = words(seed, position, quads, TARGET)
    bits = tl.join(tl.join(first, third), tl.join(second, fourth))
    rest = exponential(tl.reshape(bits, (quads.shape[0], 4)))
    tokens = quads[:, None] * 4 + tl.arange(0, 4)[None, :]
    values = load_values(row, tokens, exist[:, None] & (tokens < V), threshold)
    noise = tl.where((tokens & 255) == lane[:, None], minimum[:, None], minimum[:, None] + rest)
    keys = _noisy_key(values, rate, tl.where(greedy, 1.0, noise), tokens)
    return tl.where((values < float("inf")), keys, HIGHEST)


@triton.jit
def _list_piece(
    row,
    blocks,
    needed,
    count,
    listed,
    V: tl.constexpr,
    CAPACITY: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Append the quads of blocks (ROWS,) with a logit that is needed (ROWS,), as far as the list
    has room."""
    columns = blocks[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    values = tl.load(row + columns, mask=columns < V, other=float("-inf")).to(tl.float32)
    values = tl.where(values != values, float("inf"), values)
    largest = tl.max(tl.reshape(values, (ROWS, QUADS, 4)), axis=2)
    chosen = largest >= needed[:, None]
    quads = blocks[:, None] * QUADS + tl.arange(0, QUADS)[None, :]
    place = tl.atomic_add(count + quads * 0, 1, mask=chosen, sem="relaxed", scope="gpu")
    tl.store(listed + place, quads, mask=chosen & (place < CAPACITY))


@triton.jit
def _race(
    row,
    guesses,
    split,
    bars,
    count,
    listed,
    threshold,
    rate,
    greedy,
    seed,
    position,
    V: tl.constexpr,
    STEP: tl.constexpr,
    STEPS: tl.constexpr,
    STAGES: tl.constexpr,
    SCOUTS: tl.constexpr,
    CAPACITY: tl.constexpr,
    GANG: tl.constexpr,
    GUESSED: tl.constexpr,
):
    """(the largest key of a piece, or a larger one of its row; the largest of the guesses)."""
    NUM_BLOCKS: tl.constexpr = (V + BLOCK - 1) // BLOCK
    begin = split * STEP * STEPS
    guessed = tl.full((), LOWEST, tl.int64)
    if GUESSED:
        keys = _guess_keys(row, guesses, threshold, rate, greedy, seed, position, V)
        guessed = tl.max(keys, axis=0)
    if STEPS == 1:  # a small piece: tokens all over the row are timed first
        scouts = tl.arange(0, SCOUTS) * NUM_BLOCKS // SCOUTS
    else:
        scouts = begin + tl.arange(0, STEP * STEPS)
    minimum, lane = block_noise(seed, position, scouts)
    keys = _fastest_keys(row, scouts, minimum, lane, threshold, rate, greedy, V)
    best = tl.maximum(guessed, tl.max(keys, axis=0))
    if STEPS == 1:
        blocks = begin + tl.arange(0, STEP)
        minimum, lane = block_noise(seed, position, blocks)
        needed = _needed(best, minimum, rate, greedy, threshold)
        _list_piece(row, blocks, needed, count, listed, V, CAPACITY, STEP)
    else:
        tl.store(bars + scouts, _needed(best, minimum, rate, greedy, threshold))
        tl.debug_barrier()
        for step in tl.range(STEPS, num_stages=STAGES):
            blocks = begin + step * STEP + tl.arange(0, STEP)
            needed = tl.load(bars + blocks)
            _list_piece(row, blocks, needed, count, listed, V, CAPACITY, STEP)
    tl.debug_barrier()  # the list is complete
    num_listed = tl.atomic_xchg(count, 0, sem="relaxed", scope="gpu")
    is_full = num_listed > CAPACITY  # then every quad of the piece is timed
    num_listed = tl.where(is_full, STEP * STEPS * QUADS, num_listed)
    start = 0
    while start < num_listed:
        slots = start + tl.arange(0, GANG)
        exist = slots < num_listed
        quads = tl.load(listed + slots, mask=exist & (is_full == 0), other=0, cache_modifier=".cg")
        quads = tl.where(is_full, begin * QUADS + slots, quads)
        timed = _quad_keys(row, quads, exist, threshold, rate, greedy, seed, position, V)
        best = tl.maximum(best, tl.max(tl.max(timed, axis=1), axis=0))
        start += GANG
    return best, guessed


@triton.jit
def _at(values, slots, slot):
    """The entry of values (N,) at a slot."""
    return tl.sum(tl.where(slots == slot, values, 0), axis=0)


@triton.jit
def _conclude(keys, guesses, above, slots, length, TREE: tl.constexpr):
    """(row reached, tokens accepted, extra token, fault) from the winners of all rows (ROWS,).

    guesses, above: the nodes of the draft and their parents, -2 for those that do not count.
    """
    is_broken = (keys == HIGHEST) | (keys == LOWEST)
    winners = tl.where(is_broken, 0, TOKEN_BITS - (keys & TOKEN_BITS))
    if TREE:
        reached = 0
        accepted = 0
        going_on = True
        while going_on:
            is_hit = (above == reached - 1) & (guesses == _at(winners, slots, reached))
            child = tl.min(tl.where(is_hit, slots, FAR), axis=0)
            going_on = (child < FAR) & (_at(is_broken.to(tl.int32), slots, reached) == 0)
            reached = tl.where(going_on, child + 1, reached)
            accepted += going_on.to(tl.int32)
    else:
        is_hit = (slots < length) & (guesses == winners) & (is_broken == 0)
        reached = tl.min(tl.where(is_hit, FAR, slots), axis=0)
        accepted = reached
    is_wrong = _at(is_broken.to(tl.int32), slots, reached) != 0
    fault = tl.where(is_wrong, fault_at(reached, TARGET_ROW), 0)
    return reached, accepted, _at(winners, slots, reached), fault


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
    bars,  # (B, N, BLOCKS) float32
    list_counts,  # (B, N, BLOCKS) int32, zero before and after; a piece has that of its first block
    lists,  # (B, N, BLOCKS, LIST) int32: quads that are timed; a piece has that of all its blocks
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
    STAGES: tl.constexpr,  # of the pipeline that reads, where there are several steps
    SCOUTS: tl.constexpr,  # tokens that are timed first where there is one step
    GANG: tl.constexpr,  # quads that are timed at a time
    ROWS: tl.constexpr,
    TREE: tl.constexpr,
    SKIP: tl.constexpr,  # whether to look for refusals first; pays where programs wait their turn
    TRUNCATED: tl.constexpr,
):
    SPLITS: tl.constexpr = (V + STEP * STEPS * BLOCK - 1) // (STEP * STEPS * BLOCK)
    pid = tl.program_id(0)
    split = pid % SPLITS
    sequence = (pid // SPLITS) % num_sequences
    index = pid // SPLITS // num_sequences  # rows of all sequences in turn: refusals come early
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
        threshold = float("-inf")
        if TRUNCATED:
            threshold = tl.load(thresholds + place)
        temperature = tl.load(temperatures + sequence)
        depth = index
        follows = slots == index
        if TREE:
            depth = depth_of(parents + sequence * (num_rows - 1), index - 1)
            follows = tl.load(parents + nodes, mask=inside, other=-2) == index - 1
        piece = place * BLOCKS + split * STEP * STEPS
        best, guessed = _race(
            logits + place.to(tl.int64) * V,
            tl.load(tokens + nodes, mask=inside & follows, other=-1),
            split,
            bars + place * BLOCKS,
            list_counts + piece,
            lists + piece.to(tl.int64) * LIST,
            threshold,
            inverse(temperature),
            temperature == 0.0,
            tl.load(seeds + sequence),
            tl.load(positions + sequence) + depth,
            V,
            STEP,
            STEPS,
            STAGES,
            SCOUTS,
            STEP * STEPS * LIST,
            GANG,
            ROWS > 1,
        )
        winner = TOKEN_BITS - (best & TOKEN_BITS)
        is_here = winner // (STEP * STEPS * BLOCK) == split
        if ((best > LOWEST) & is_here) | (best == HIGHEST):
            tl.atomic_max(keys + place, best, sem="relaxed", scope="gpu")
        if SKIP and not TREE and best > guessed:
            tl.atomic_min(limits + sequence, index, sem="relaxed", scope="gpu")
    if arrive(finished + sequence) == num_rows * SPLITS - 1:
        winners = tl.load(
            keys + first + slots, mask=slots <= length, other=LOWEST, cache_modifier=".cg"
        )
        guesses = tl.load(tokens + nodes, mask=inside, other=-2)
        above = guesses
        if TREE:
            above = tl.load(parents + nodes, mask=inside, other=-2)
        reached, accepted, extra, fault = _conclude(winners, guesses, above, slots, length, TREE)
        tl.store(out_reached + sequence, reached)
        tl.store(out_accepted + sequence, accepted)
        tl.store(out_extra + sequence, extra)
        tl.store(out_fault + sequence, outside(tl.where(inside, guesses, 0), slots, fault, V))
        tl.store(limits + sequence, FAR)
        tl.store(finished + sequence, 0)
        tl.debug_barrier()
        tl.store(keys + first + slots, tl.full((ROWS,), LOWEST, tl.int64), mask=slots < num_rows)
