"""Finds the threshold of a row for top-k, top-p and min-p: the smallest logit that is kept.

A step of the search divides the row's interval of logits into `WAYS` parts and continues with the
part that contains the threshold; after `STEPS` steps it is a single float32 number.  A row is cut
into pieces, one program each, and the program that finishes last takes the step.  Tokens and their
weights are summed as whole numbers, so the sums are exact in any order, and a row's threshold
depends on the row alone.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from forerun.kernels.triton.arithmetic import finite, inverse
from forerun.kernels.triton.drawing import power

WAYS = tl.constexpr(16)
STEPS = tl.constexpr(8)
"""The number of steps of a search, enough for keys of 32 bits."""
LOWEST = tl.constexpr(-2139095041)  # the key of -inf
BELOW = tl.constexpr(-2139095042)  # the key of NaN, and of places past the vocabulary
UNIT = tl.constexpr(1099511627776.0)  # 2**40: the weight of the likeliest token


@triton.jit
def _key(value):
    """Whole numbers in the order of float32 values."""
    bits = tl.where(value == 0.0, 0.0, value).to(tl.int32, bitcast=True)  # -0 is 0
    key = tl.where(bits >= 0, bits, bits ^ 0x7FFFFFFF)
    return tl.where(value == value, key, BELOW).to(tl.int64)


@triton.jit
def _value(key):
    """The float32 value of a key."""
    bits = key.to(tl.int32)
    return tl.where(bits >= 0, bits, bits ^ 0x7FFFFFFF).to(tl.float32, bitcast=True)


@triton.jit
def _edge(low, high, part):
    """The lowest key of a part, 0 to WAYS, of the interval from `low` to `high`."""
    return low + ((high - low) * part) // WAYS


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


@triton.jit(do_not_specialize=["num_rows", "more", "step"])
def threshold_kernel(
    logits,  # (B, N, V)
    lengths,  # (B,) int32
    temperatures,  # (B,) float32
    top_k,  # (B,) int32, 0 for none
    top_p,  # (B,) float32, 1 for none
    min_p,  # (B,) float32, 0 for none
    thresholds,  # (B, N) float32
    sums,  # (B * N, WAYS + 1) int64: zero between launches
    finished,  # (B * N,) int32: zero between launches
    states,  # (B * N, 5) int64: an interval of keys, what is above it, what is needed, the best key
    num_rows,
    more,  # rows that count besides those of `lengths`
    step,
    V: tl.constexpr,
    PIECE: tl.constexpr,
    BY_MASS: tl.constexpr,  # the search for top-p, which follows that for top-k
    PDL: tl.constexpr,
):
    """Take one step of a search.  The first step for a row also finds its largest logit."""
    PIECES: tl.constexpr = (V + PIECE - 1) // PIECE
    place = tl.program_id(0) // PIECES
    piece = tl.program_id(0) % PIECES
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    sequence = place // num_rows
    temperature = tl.load(temperatures + sequence)
    limit = tl.load(top_k + sequence)
    share = tl.load(top_p + sequence)
    least = tl.load(min_p + sequence)
    has_k, has_p = (limit > 0) & (limit < V), share < 1.0
    cuts = (temperature > 0.0) & (has_k | has_p | (least > 0.0))
    cuts &= place % num_rows < tl.load(lengths + sequence) + more
    is_first = (step == 0) & (not BY_MASS)
    if not cuts:
        if is_first & (piece == 0):
            tl.store(thresholds + place, float("-inf"))
        return
    searches = has_p if BY_MASS else has_k
    if not (searches | is_first):
        return
    state = states + place * 5
    if is_first:
        low = tl.zeros((), tl.int64) + LOWEST
        high, above = low + 4294967296, tl.zeros((), tl.int64)
    else:
        low, high, above = tl.load(state), tl.load(state + 1), tl.load(state + 2)
    if low >= high:  # of a row without a law
        return
    parts = tl.arange(0, WAYS)
    tokens = piece * PIECE + tl.arange(0, PIECE)
    row = logits + place.to(tl.int64) * V
    values = tl.load(row + tokens, mask=tokens < V, other=float("nan")).to(tl.float32)
    keys = _key(values)
    rate = inverse(temperature)
    inside = (keys >= low) & (keys < high)
    mine = sums + place * (WAYS + 1)
    if is_first:
        # keys are larger than -2**32, so that 0 stands for none
        tl.atomic_max(mine + WAYS, tl.max(keys, axis=0) + 4294967296, sem="relaxed")
    if searches & (tl.sum(inside.to(tl.int32), axis=0) > 0):
        if BY_MASS:
            best = _value(tl.load(state + 4))
            amounts = (power(values, best, rate) * UNIT).to(tl.int64)
        else:
            amounts = tl.full((PIECE,), 1, tl.int64)
        for part in tl.static_range(WAYS):
            passes = inside & (keys >= _edge(low, high, part))
            total = tl.sum(tl.where(passes, amounts, 0), axis=0)
            tl.atomic_add(mine + part, total, sem="relaxed")
    tl.debug_barrier()  # the sums of every thread come before the count
    is_last = tl.atomic_add(finished + place, 1, sem="acq_rel", scope="gpu") == PIECES - 1
    if not is_last:
        return
    found = tl.load(mine + parts, cache_modifier=".cg") + above
    best_key = tl.load(mine + WAYS, cache_modifier=".cg") - 4294967296
    tl.debug_barrier()  # every thread has read them
    tl.store(mine + parts, tl.zeros((WAYS,), tl.int64))
    tl.store(mine + WAYS, tl.zeros((), tl.int64))
    tl.store(finished + place, 0)
    if is_first:
        tl.store(state + 4, best_key)
        if not finite(_value(best_key)):
            tl.store(state, 0)
            tl.store(state + 1, 0)
            tl.store(thresholds + place, float("-inf"))
            return
    else:
        best_key = tl.load(state + 4)
    needed = limit.to(tl.int64)
    if BY_MASS:
        if step == 0:
            total = tl.max(found, axis=0).to(tl.float64) * share.to(tl.float64)
            needed = total.to(tl.int64)
            needed += (needed.to(tl.float64) < total).to(tl.int64)
            tl.store(state + 3, needed)
        else:
            needed = tl.load(state + 3)
    if searches:
        chosen = tl.maximum(tl.sum((found >= needed).to(tl.int32), axis=0) - 1, 0)
        above = tl.max(tl.where(parts == chosen + 1, found, above), axis=0)
        low, high = _edge(low, high, chosen), _edge(low, high, chosen + 1)
    is_over = step == STEPS - 1
    if (BY_MASS | (not has_p)) & (is_over | (not searches)):
        best = _value(best_key)
        tl.store(thresholds + place, _with_min_p(_value(low), best, rate, least))
    if (not BY_MASS) & (is_over | (not has_k)):  # what is kept is searched for top-p
        high, above = best_key + 1, tl.zeros((), tl.int64)
    tl.store(state, low)
    tl.store(state + 1, high)
    tl.store(state + 2, above)
