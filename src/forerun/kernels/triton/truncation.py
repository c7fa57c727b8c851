"""Finds the threshold of a row for top-k, top-p and min-p: the smallest logit that is kept.

A row is cut into pieces, one program each, and the program that finishes last goes on alone.  A
first launch bounds the threshold: the k-th largest of the largest logits of blocks is at most the
k-th largest of all.  Top-p has no such bound, so each of the next launches divides the interval of
logits that contains its threshold into `WAYS` parts, until few tokens are inside.  The last launch
collects the tokens inside, and searches these; if they are too many, all of the row.  Tokens and
their weights are summed as whole numbers, so the sums are exact in any order, and a row's threshold
depends on the row alone.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from forerun.kernels.triton.arithmetic import finite, inverse
from forerun.kernels.triton.drawing import power

WAYS = tl.constexpr(16)
CUT_BLOCK = tl.constexpr(128)
"""The number of neighbouring tokens whose largest logit is recorded."""
LOWEST = tl.constexpr(-2139095041)  # the key of -inf
BELOW = tl.constexpr(-2139095042)  # the key of NaN, and of places past the vocabulary
SMALLEST = tl.constexpr(-3.4028234663852886e38)
UNIT = tl.constexpr(1099511627776.0)  # 2**40: the weight of the likeliest token
FARTHEST = tl.constexpr(10.0)
"""An interval that begins at -inf is divided at distances from its upper end that are powers of
two. The largest of them is half of 2 to the power of this number."""
NO_WEIGHT = tl.constexpr(28.0)  # exp(-28) is less than 1 / UNIT
FEW = tl.constexpr(256)
"""For a top-k of at most this, the bound from the first launch leaves so few tokens that the
interval need not be divided."""
LOW, HIGH, ABOVE, NEEDED, BEST, IS_NARROW = (tl.constexpr(place) for place in range(6))
"""The places of the numbers in the state of a row. The threshold's key lies in [LOW, HIGH). ABOVE
is the amount of the tokens from HIGH on, NEEDED the amount that the kept tokens must have. BEST is
the largest key. IS_NARROW: the interval is not divided further."""


@triton.jit
def _key(value):
    """Whole numbers that are ordered like the float32 values."""
    bits = tl.where(value == 0.0, 0.0, value).to(tl.int32, bitcast=True)  # -0 is 0
    key = tl.where(bits >= 0, bits, bits ^ 0x7FFFFFFF)
    return tl.where(value == value, key, BELOW).to(tl.int64)


@triton.jit
def _value(key):
    """The float32 value that a key stands for."""
    bits = key.to(tl.int32)
    return tl.where(bits >= 0, bits, bits ^ 0x7FFFFFFF).to(tl.float32, bitcast=True)


@triton.jit
def _edge(low, high, part):
    """Return the lowest key of a part (0 to WAYS) of the interval of keys from `low` to `high`.
    Parts are equally wide in logits, not in keys, most of which belong to logits near 0. If the
    interval begins at -inf, each part is half as wide as the one below it."""
    first, last, at = _value(low), _value(high - 1), part.to(tl.float32)
    inner = tl.where(
        low == LOWEST, last - tl.exp2(FARTHEST - at), first + (last - first) * (at / WAYS)
    )
    inner = tl.maximum(tl.minimum(_key(inner), high), low)
    return tl.where(part == 0, low, tl.where(part == WAYS, high, inner))


@triton.jit
def _amounts(values, best, rate):
    """Return the weights of tokens as whole numbers, so that their sums are exact."""
    return (power(values, best, rate) * UNIT).to(tl.int64)


@triton.jit
def _share_of(total, share):
    """The least whole number that is at least this share of a total."""
    exact = total.to(tl.float64) * share.to(tl.float64)
    needed = exact.to(tl.int64)
    return needed + (needed.to(tl.float64) < exact).to(tl.int64)


@triton.jit
def _options(place, lengths, temperatures, top_k, top_p, min_p, num_rows, more, V: tl.constexpr):
    """Return the options of a row: (whether it is cut, its temperature, top-k or 0, top-p,
    min-p)."""
    sequence = place // num_rows
    temperature = tl.load(temperatures + sequence)
    limit = tl.load(top_k + sequence)
    limit = tl.where(limit < V, limit, 0)
    share = tl.load(top_p + sequence)
    least = tl.load(min_p + sequence)
    cuts = (temperature > 0.0) & ((limit > 0) | (share < 1.0) | (least > 0.0))
    cuts &= place % num_rows < tl.load(lengths + sequence) + more
    return cuts, temperature, limit, share, least


@triton.jit
def _is_last(finished, PIECES: tl.constexpr):
    """Whether all other programs of a row have written their results."""
    tl.debug_barrier()  # the results of every thread come before the count
    is_last = tl.atomic_add(finished, 1, sem="acq_rel", scope="gpu") == PIECES - 1
    if is_last:
        tl.store(finished, 0)
    return is_last


@triton.jit(do_not_specialize=["num_rows", "more"])
def bound_kernel(
    logits,  # (B, N, V)
    lengths,  # (B,) int32
    temperatures,  # (B,) float32
    top_k,  # (B,) int32, 0 for none
    top_p,  # (B,) float32, 1 for none
    min_p,  # (B,) float32, 0 for none
    thresholds,  # (B, N) float32
    maxima,  # (B * N, BLOCKS) int32
    finished,  # (B * N,) int32: zero between launches
    states,  # (B * N, 6) int64
    num_rows,
    more,  # rows that count besides those of `lengths`
    V: tl.constexpr,
    BLOCKS: tl.constexpr,
    PIECE: tl.constexpr,
    PDL: tl.constexpr,
):
    """Find the largest logit of each row, and an interval for its threshold."""
    PIECES: tl.constexpr = (V + PIECE - 1) // PIECE
    OF_PIECE: tl.constexpr = PIECE // CUT_BLOCK
    place = tl.program_id(0) // PIECES
    piece = tl.program_id(0) % PIECES
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    cuts, temperature, limit, share, _least = _options(
        place, lengths, temperatures, top_k, top_p, min_p, num_rows, more, V
    )
    if not cuts:
        if piece == 0:
            tl.store(thresholds + place, float("-inf"))
        return
    blocks = piece * OF_PIECE + tl.arange(0, OF_PIECE)
    tokens = blocks[:, None] * CUT_BLOCK + tl.arange(0, CUT_BLOCK)[None, :]
    row = logits + place.to(tl.int64) * V
    values = tl.load(row + tokens, mask=tokens < V, other=float("nan")).to(tl.float32)
    mine = maxima + place * BLOCKS
    tl.store(mine + blocks, tl.max(_key(values), axis=1).to(tl.int32))
    if not _is_last(finished + place, PIECES):
        return
    index = tl.arange(0, BLOCKS)
    there = index < PIECES * OF_PIECE
    found = tl.load(mine + index, mask=there, other=BELOW, cache_modifier=".cg").to(tl.int64)
    best = tl.max(found, axis=0)
    low, high = best + 1, best + 1
    if not finite(_value(best)):
        tl.store(thresholds + place, float("-inf"))
    elif limit > 0:
        low = tl.zeros((), tl.int64) + LOWEST
        top = high
        while top - low > 1:
            middle = (low + top) >> 1
            enough = tl.sum((found >= middle).to(tl.int32), axis=0) >= limit
            low = tl.where(enough, middle, low)
            top = tl.where(enough, top, middle)
    elif share < 1.0:
        low = _key(tl.maximum(_value(best) - NO_WEIGHT * temperature, SMALLEST))
    state = states + place * 6
    tl.store(state + LOW, low)
    tl.store(state + HIGH, high)
    tl.store(state + ABOVE, tl.zeros((), tl.int64))
    tl.store(state + BEST, best)
    # few tokens are above the bound for a small k; top-p after top-k has to see all of them
    tl.store(state + IS_NARROW, ((limit > 0) & ((limit <= FEW) | (share < 1.0))).to(tl.int64))


@triton.jit(do_not_specialize=["num_rows", "more", "step"])
def divide_kernel(
    logits,
    lengths,
    temperatures,
    top_k,
    top_p,
    min_p,
    sums,  # (B * N, WAYS) int64: zero between launches
    finished,
    states,
    num_rows,
    more,
    step,
    V: tl.constexpr,
    PIECE: tl.constexpr,
    MOST: tl.constexpr,  # tokens that are collected
    PDL: tl.constexpr,
):
    """Divide the interval of each row with top-p or a large top-k, if there are many tokens in it.
    The other arguments are those of `bound_kernel`."""
    PIECES: tl.constexpr = (V + PIECE - 1) // PIECE
    place = tl.program_id(0) // PIECES
    piece = tl.program_id(0) % PIECES
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    cuts, temperature, limit, share, _least = _options(
        place, lengths, temperatures, top_k, top_p, min_p, num_rows, more, V
    )
    if not (cuts & ((share < 1.0) | (limit > 0))):
        return
    state = states + place * 6
    best = _value(tl.load(state + BEST))
    if (tl.load(state + IS_NARROW) > 0) | (finite(best) == 0):
        return
    low, high, above = tl.load(state + LOW), tl.load(state + HIGH), tl.load(state + ABOVE)
    tokens = piece * PIECE + tl.arange(0, PIECE)
    row = logits + place.to(tl.int64) * V
    values = tl.load(row + tokens, mask=tokens < V, other=float("nan")).to(tl.float32)
    keys = _key(values)
    rate = inverse(temperature)
    inside = (keys >= low) & (keys < high)
    mine = sums + place * WAYS
    parts = tl.arange(0, WAYS)
    if tl.sum(inside.to(tl.int32), axis=0) > 0:
        weights = tl.where(limit > 0, 1, _amounts(values, best, rate))
        amounts = tl.where(inside, weights, 0)
        edges = _edge(low, high, parts)
        for part in tl.static_range(WAYS):
            edge = tl.sum(tl.where(parts == part, edges, 0), axis=0)
            total = tl.sum(tl.where(keys >= edge, amounts, 0), axis=0)
            tl.atomic_add(mine + part, total, sem="relaxed")
    if not _is_last(finished + place, PIECES):
        return
    found = tl.load(mine + parts, cache_modifier=".cg") + above
    tl.debug_barrier()  # every thread has read them
    tl.store(mine + parts, tl.zeros((WAYS,), tl.int64))
    if limit > 0:
        needed = limit.to(tl.int64)
    elif step == 0:
        needed = _share_of(tl.max(found, axis=0), share)
        tl.store(state + NEEDED, needed)
    else:
        needed = tl.load(state + NEEDED)
    chosen = tl.maximum(tl.sum((found >= needed).to(tl.int32), axis=0) - 1, 0)
    above = tl.max(tl.where(parts == chosen + 1, found, above), axis=0)
    amount = tl.max(tl.where(parts == chosen, found, above), axis=0) - above
    low, high = _edge(low, high, chosen), _edge(low, high, chosen + 1)
    tl.store(state + LOW, low)
    tl.store(state + HIGH, high)
    tl.store(state + ABOVE, above)
    # a token inside counts as much as `low` at least
    least = tl.where(limit > 0, 1, _amounts(_value(low), best, rate))
    is_narrow = amount <= MOST * least
    tl.store(state + IS_NARROW, is_narrow.to(tl.int64))


@triton.jit
def _total(
    row, some, are_few, count, edge, high, best, rate,
    BY_MASS: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    """Count the tokens with keys in [edge, high), or sum their weights if BY_MASS. It looks at the
    first `count` tokens of a row, or if `are_few` at the `count` tokens listed in `some`."""
    total = tl.zeros((), tl.int64)
    for first in range(0, count, MOST):
        at = first + tl.arange(0, MOST)
        there = at < count
        tokens = tl.where(are_few, tl.load(some + at, mask=there & are_few, other=0), at)
        values = tl.load(row + tokens, mask=there, other=float("nan")).to(tl.float32)
        keys = _key(values)
        inside = (keys >= edge) & (keys < high)
        if BY_MASS:
            amounts = tl.where(inside, _amounts(values, best, rate), 0)
        else:
            amounts = inside.to(tl.int64)
        total += tl.sum(amounts, axis=0)
    return total


@triton.jit
def _search(
    row, some, are_few, count, low, high, above, needed, best, rate,
    BY_MASS: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    """Search for the largest key in [low, high) such that the tokens from it on, together with
    `above`, reach the needed amount; `low` if there is none."""
    top = high
    while top - low > 1:
        middle = (low + top) >> 1
        found = _total(row, some, are_few, count, middle, high, best, rate, BY_MASS, MOST)
        enough = above + found >= needed
        low = tl.where(enough, middle, low)
        top = tl.where(enough, top, middle)
    return low


@triton.jit
def _with_min_p(threshold, best, rate, least):
    """The larger of a threshold and the smallest value whose weight is `least` or more."""
    low = tl.zeros((), tl.int64) + LOWEST
    high = _key(best)
    if least > 0.0:
        while high - low > 1:
            middle = (low + high) >> 1
            enough = power(_value(middle), best, rate) >= least
            high = tl.where(enough, middle, high)
            low = tl.where(enough, low, middle)
        threshold = tl.maximum(threshold, _value(high))
    return threshold


@triton.jit(do_not_specialize=["num_rows", "more"])
def collect_kernel(
    logits,
    lengths,
    temperatures,
    top_k,
    top_p,
    min_p,
    thresholds,
    inside_counts,  # (B * N,) int32: zero between launches
    inside_tokens,  # (B * N, MOST) int32
    finished,
    states,
    num_rows,
    more,
    V: tl.constexpr,
    PIECE: tl.constexpr,
    MOST: tl.constexpr,
    PDL: tl.constexpr,
):
    """Collect the tokens in the interval of each row, and write its threshold.  The other arguments
    are those of `bound_kernel`."""
    PIECES: tl.constexpr = (V + PIECE - 1) // PIECE
    place = tl.program_id(0) // PIECES
    piece = tl.program_id(0) % PIECES
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    cuts, temperature, limit, share, least = _options(
        place, lengths, temperatures, top_k, top_p, min_p, num_rows, more, V
    )
    if not cuts:
        return
    state = states + place * 6
    best_key = tl.load(state + BEST)
    best = _value(best_key)
    if not finite(best):
        return
    low, high = tl.load(state + LOW), tl.load(state + HIGH)
    row = logits + place.to(tl.int64) * V
    some = inside_tokens + place * MOST
    searches = (limit > 0) | (share < 1.0)
    is_last = piece == 0
    if searches:
        tokens = piece * PIECE + tl.arange(0, PIECE)
        values = tl.load(row + tokens, mask=tokens < V, other=float("nan")).to(tl.float32)
        keys = _key(values)
        inside = (keys >= tl.maximum(low, LOWEST + 1)) & (keys < high)  # -inf weighs nothing
        count = tl.sum(inside.to(tl.int32), axis=0)
        if count > 0:
            before = tl.atomic_add(inside_counts + place, count, sem="relaxed")
            slots = before + tl.cumsum(inside.to(tl.int32), axis=0) - 1
            tl.store(some + slots, tokens, mask=inside & (slots < MOST))
        is_last = _is_last(finished + place, PIECES)
    if not is_last:
        return
    rate = inverse(temperature)
    if searches:
        count = tl.load(inside_counts + place, cache_modifier=".cg")
        tl.debug_barrier()  # every thread has read it
        tl.store(inside_counts + place, 0)
        are_few = count <= MOST
        count = tl.where(are_few, count, V)
        above = tl.load(state + ABOVE)
        if limit > 0:
            low = _search(
                row, some, are_few, count, low, high, above, limit.to(tl.int64), best, rate,
                False, MOST,
            )  # fmt: skip
        if share < 1.0:
            needed = tl.load(state + NEEDED)
            if limit > 0:
                kept = _total(row, some, are_few, count, low, high, best, rate, True, MOST)
                needed = _share_of(kept, share)
            low = _search(
                row, some, are_few, count, low, high, above, needed, best, rate, True, MOST
            )
    else:
        low = tl.zeros((), tl.int64) + LOWEST
    tl.store(thresholds + place, _with_min_p(_value(low), best, rate, least))
