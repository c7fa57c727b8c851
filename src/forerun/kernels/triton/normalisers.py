"""From segments to rows: normalisers, and the probability of one token."""

import triton
import triton.language as tl

from forerun.kernels.triton.arithmetic import SEGMENT, finite
from forerun.kernels.triton.drawing import likeliest, power, segment_sums


@triton.jit
def load_segments(maxima, sums, is_there, V: tl.constexpr, SEGMENTS: tl.constexpr):
    """Maxima and sums (SEGMENTS,) that other programs wrote."""
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
    """(largest logit, total weight, likeliest token, probability of a token) of a row.

    maxima, sums: (SEGMENTS,); value: the logit of that token.
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
    """Whether a row has a finite largest logit and no NaN, which would be in its mass."""
    return finite(best) & finite(mass)
