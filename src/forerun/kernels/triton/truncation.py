"""Top-k, top-p and min-p as one threshold per row: the smallest logit that is kept.

One program a row bisects over the ordered bits of float32, reading the row (from the second-level
cache) once a step.  Counts are exact and masses are summed in one order, so a row's threshold
depends on nothing but the row.
"""

import triton
import triton.language as tl

from forerun.kernels.triton.arithmetic import finite, inverse
from forerun.kernels.triton.drawing import power

LOWEST = tl.constexpr(-2139095041)  # the key of -inf
CHUNK = tl.constexpr(4096)


@triton.jit
def _key(value):
    """Whole numbers in the order of the floats."""
    bits = value.to(tl.int32, bitcast=True)
    return tl.where(bits >= 0, bits, bits ^ 0x7FFFFFFF).to(tl.int64)


@triton.jit
def _value(key):
    bits = key.to(tl.int32)
    return tl.where(bits >= 0, bits, bits ^ 0x7FFFFFFF).to(tl.float32, bitcast=True)


@triton.jit
def _largest(row, V: tl.constexpr):
    best = tl.full((CHUNK,), float("-inf"), tl.float32)
    for start in range(0, V, CHUNK):
        tokens = start + tl.arange(0, CHUNK)
        values = tl.load(row + tokens, mask=tokens < V, other=float("-inf")).to(tl.float32)
        best = tl.maximum(best, values)
    return tl.max(best, axis=0)


@triton.jit
def _count(row, least, V: tl.constexpr):
    """Tokens whose logit is at least so large."""
    count = tl.zeros((CHUNK,), tl.int32)
    for start in range(0, V, CHUNK):
        tokens = start + tl.arange(0, CHUNK)
        inside = tokens < V
        values = tl.load(row + tokens, mask=inside, other=float("-inf")).to(tl.float32)
        count += (inside & (values >= least)).to(tl.int32)
    return tl.sum(count, axis=0)


@triton.jit
def _mass(row, least, best, rate, V: tl.constexpr):
    """Their weight together, in float64."""
    mass = tl.zeros((CHUNK,), tl.float64)
    for start in range(0, V, CHUNK):
        tokens = start + tl.arange(0, CHUNK)
        values = tl.load(row + tokens, mask=tokens < V, other=float("-inf")).to(tl.float32)
        mass += tl.where(values >= least, power(values, best, rate), 0.0).to(tl.float64)
    return tl.sum(mass, axis=0)


@triton.jit(do_not_specialize=["num_rows", "more"])
def threshold_kernel(
    logits,  # (B, N, V)
    lengths,  # (B,) int32
    temperatures,  # (B,) float32
    top_k,  # (B,) int32, 0 for none
    top_p,  # (B,) float32, 1 for none
    min_p,  # (B,) float32, 0 for none
    thresholds,  # (B, N) float32
    num_rows,
    more,  # rows that count besides those of `lengths`
    V: tl.constexpr,
):
    place = tl.program_id(0)
    sequence = place // num_rows
    index = place % num_rows
    temperature = tl.load(temperatures + sequence)
    limit = tl.load(top_k + sequence)
    share = tl.load(top_p + sequence)
    least = tl.load(min_p + sequence)
    cuts = (temperature > 0.0) & (((limit > 0) & (limit < V)) | (share < 1.0) | (least > 0.0))
    threshold = float("-inf")
    if cuts & (index < tl.load(lengths + sequence) + more):
        row = logits + place.to(tl.int64) * V
        rate = inverse(temperature)
        best = _largest(row, V)
        if finite(best):
            past = _key(best) + 1
            low = tl.zeros((), tl.int64) + LOWEST
            if (limit > 0) & (limit < V):
                high = past
                while high - low > 1:
                    middle = (low + high) >> 1
                    enough = _count(row, _value(middle), V) >= limit
                    low = tl.where(enough, middle, low)
                    high = tl.where(enough, high, middle)
            if share < 1.0:
                needed = share.to(tl.float64) * _mass(row, _value(low), best, rate, V)
                high = past
                while high - low > 1:
                    middle = (low + high) >> 1
                    enough = _mass(row, _value(middle), best, rate, V) >= needed
                    low = tl.where(enough, middle, low)
                    high = tl.where(enough, high, middle)
            threshold = _value(low)
            if least > 0.0:  # the smallest value whose weight is at least so large
                high = past - 1
                low = tl.zeros((), tl.int64) + LOWEST
                while high - low > 1:
                    middle = (low + high) >> 1
                    enough = power(_value(middle), best, rate) >= least
                    high = tl.where(enough, middle, high)
                    low = tl.where(enough, low, middle)
                threshold = tl.maximum(threshold, _value(high))
    tl.store(thresholds + place, threshold)
