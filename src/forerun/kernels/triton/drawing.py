"""Sums of weights, and inverse-CDF draws in two levels: segments of 512 tokens, then tokens.

Sums within a segment are float32, running sums over segments and tokens float64.  A weight of 0 is
never drawn, whatever rounding does to a running sum.
"""

from __future__ import annotations

import triton
import triton.language as tl

from forerun.kernels.triton.arithmetic import FAR, LOG2_E, PARTS, SEGMENT, finite, load_values


@triton.jit
def power(value, best, rate):
    """exp((value - best) * rate), by the device's exp2."""
    return tl.exp2((value - best) * (rate * LOG2_E))


@triton.jit
def tokens_of(segments):
    """The tokens of segments (R,), as (R, PARTS, 128); one warp has all parts of a segment."""
    part = tl.arange(0, PARTS)[None, :, None] * (SEGMENT // PARTS)
    return segments[:, None, None] * SEGMENT + part + tl.arange(0, SEGMENT // PARTS)[None, None, :]


@triton.jit
def sum_segments(weights):
    """The sums (R,) of weights (R, PARTS, 128)."""
    return tl.sum(tl.sum(weights, axis=1), axis=1)


@triton.jit
def summarise(values, rate):
    """The largest logit (R,) of each segment in values (R, PARTS, 128), and the sum of the weights
    relative to it."""
    largest = tl.max(tl.max(values, axis=1), axis=1)
    base = tl.where(largest == float("-inf"), 0.0, largest)
    return largest, sum_segments(power(values, base[:, None, None], rate))


@triton.jit
def segment_sums(maxima, sums, best, rate):
    """The sums of segments (SEGMENTS,) relative to the largest logit of the row."""
    return sums * power(maxima, best, rate)


@triton.jit
def pick(weights, aim, SIZE: tl.constexpr):
    """The index of the first weight (SIZE,) whose running sum exceeds aim, or of the last weight
    above 0, and the running sum before it."""
    index = tl.arange(0, SIZE)
    wide = weights.to(tl.float64)
    running = tl.cumsum(wide, axis=0)
    # One minimum finds both: entries that exceed aim have their index, other entries with a weight
    # a number above all indices that falls with theirs.
    other = tl.where(weights > 0.0, 2 * SIZE - index, 2 * SIZE)
    chosen = tl.min(tl.where((running > aim) & (weights > 0.0), index, other), axis=0)
    chosen = tl.where(chosen < SIZE, chosen, 2 * SIZE - chosen)
    before = tl.sum(tl.where(index == chosen, running - wide, 0.0), axis=0)
    return chosen, before


@triton.jit
def total_of(weights):
    """The sum of weights in float64."""
    return tl.sum(weights.to(tl.float64), axis=0)


@triton.jit
def draw_law(
    row, maxima, sums, best, rate, threshold, number, V: tl.constexpr, SEGMENTS: tl.constexpr
):
    """Draw a token of softmax(row) from one number in (0, 1).

    maxima, sums: (SEGMENTS,), of the row's segments.
    """
    weights = segment_sums(maxima, sums, best, rate)
    aim = number * total_of(weights)
    segment, before = pick(weights, aim, SEGMENTS)
    tokens = segment * SEGMENT + tl.arange(0, SEGMENT)
    values = load_values(row, tokens, tokens < V, threshold)
    lane, _ = pick(power(values, best, rate), aim - before, SEGMENT)
    return segment * SEGMENT + lane


@triton.jit
def likeliest(row, maxima, best, threshold, V: tl.constexpr, SEGMENTS: tl.constexpr):
    """The lowest id among the tokens with the largest logit, `best`.  maxima: (SEGMENTS,)."""
    segments = tl.arange(0, SEGMENTS)
    segment = tl.min(tl.where(maxima == best, segments, FAR), axis=0)
    segment = tl.minimum(segment, SEGMENTS - 1)  # a row of NaN has none
    tokens = segment * SEGMENT + tl.arange(0, SEGMENT)
    values = load_values(row, tokens, tokens < V, threshold)
    return tl.minimum(tl.min(tl.where(values == best, tokens, FAR), axis=0), V - 1)


@triton.jit
def load_segments(maxima, sums, is_there, V: tl.constexpr, SEGMENTS: tl.constexpr):
    """Load the maxima and sums (SEGMENTS,) that other programs wrote."""
    segments = tl.arange(0, SEGMENTS)
    inside = (segments * SEGMENT < V) & is_there
    largest = tl.load(maxima + segments, mask=inside, other=float("-inf"), cache_modifier=".cg")
    return largest, tl.load(sums + segments, mask=inside, other=0.0, cache_modifier=".cg")


@triton.jit
def gather(
    row,
    threshold,
    rate,
    maxima,
    sums,
    token,
    value,
    greedy,
    V: tl.constexpr,
    SEGMENTS: tl.constexpr,
):
    """(largest logit, total weight, likeliest token, probability of `token`) of a row.

    maxima, sums: (SEGMENTS,).  value: the logit of `token`.
    """
    best = tl.max(maxima, axis=0)
    mass = tl.sum(segment_sums(maxima, sums, best, rate), axis=0)
    value = tl.where(value < threshold, float("-inf"), value)
    chance = tl.div_rn(power(value, best, rate), mass)
    top = 0
    if greedy:
        top = likeliest(row, maxima, best, threshold, V, SEGMENTS)
        chance = (top == token).to(tl.float32)
    return best, mass, top, chance


@triton.jit
def is_fine(best, mass):
    """Whether a row has a finite largest logit and no NaN, which would make its mass NaN."""
    return finite(best) & finite(mass)
