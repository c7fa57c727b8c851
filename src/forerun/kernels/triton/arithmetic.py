"""The arithmetic of all kernels: Philox words, exponentials, logarithms, thresholds, depths.

Noise is computed with additions, multiplications, correctly rounded divisions and integer
operations in float32, none of them fused, so it is the same bits on every device and in NumPy
(docs/gpu.md states it in full).  Any change of a bit here or in the order of a sum needs a new
`forerun.gpu.ARITHMETIC`.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.random import philox_impl

BLOCK = tl.constexpr(256)
"""The number of tokens in a block; its tokens share the minimum of their noise."""
HALF = tl.constexpr(128)
"""Half a block: the number of float32 logits that one warp reads at once."""
LANES = tl.constexpr(32)
"""The threads of a warp; each has four tokens of half a block."""
SEGMENT = tl.constexpr(512)
"""The number of tokens whose weights are summed together."""
PARTS = tl.constexpr(4)
"""The parts of a segment; one warp reads a part of 128 float32 logits at once."""
FAR = tl.constexpr(1 << 30)
"""A number above every token, block, node and slot."""

# The purposes of random numbers, as in forerun.noise.addresses.Purpose.
TARGET = tl.constexpr(0)
TARGET_BLOCK = tl.constexpr(1)
DRAFT = tl.constexpr(2)
ACCEPT = tl.constexpr(3)
RESIDUAL = tl.constexpr(4)

LN2_HIGH = tl.constexpr(0.693145751953125)  # 15 bits, so that its multiples up to 2**9 are exact
LN2_LOW = tl.constexpr(1.4286068203094172e-06)
LOG2_E = tl.constexpr(1.4426950408889634)
TINY = tl.constexpr(1.1754943508222875e-38)


@triton.jit
def words(seed, position, index, PURPOSE: tl.constexpr):
    """Return the four 32-bit words of Philox for the counter (index, position low, position high,
    purpose)."""
    index = index.to(tl.uint32)
    zero = index * 0
    return philox_impl(
        index, zero + position.to(tl.uint32), zero + (position >> 32).to(tl.uint32), zero + PURPOSE,
        zero + seed.to(tl.uint32), zero + (seed >> 32).to(tl.uint32),
    )  # fmt: skip


@triton.jit
def word(seed, position, index, PURPOSE: tl.constexpr):
    """Return one 32-bit word per index. Four neighbouring indices share a Philox counter."""
    first, second, third, fourth = words(seed, position, index >> 2, PURPOSE)
    odd = (index & 1) == 1
    late = (index & 2) == 2
    return tl.where(late, tl.where(odd, fourth, third), tl.where(odd, second, first))


@triton.jit
def unit(seed, position, slot, PURPOSE: tl.constexpr):
    """Return the uniform number (k + 1/2) / 2**32 in (0, 1) for a slot, in float64; k is the slot's
    word."""
    slot = (seed * 0).to(tl.int32) + slot  # a plain number becomes a tensor
    return (word(seed, position, slot, PURPOSE).to(tl.float64) + 0.5) * 2.3283064365386963e-10


@triton.jit
def _twice_atanh(s):
    """2 atanh(s) = log((1 + s) / (1 - s)) for |s| <= 1/3, by its series up to s**15."""
    z = s * s
    series = z * 0.06666667014360428 + 0.07692307978868484
    series = series * z + 0.09090909361839294
    series = series * z + 0.1111111119389534
    series = series * z + 0.1428571492433548
    series = series * z + 0.20000000298023224
    series = series * z + 0.3333333432674408
    series = series * z + 1.0
    return (s + s) * series


@triton.jit
def logarithm(x):
    """log(x) of a positive normal float32."""
    bits = x.to(tl.int32, bitcast=True)
    exponent = (bits - 0x3F3504F3) >> 23  # so that what is left lies in [sqrt(1/2), sqrt(2))
    rest = (bits - (exponent << 23)).to(tl.float32, bitcast=True)
    tail = _twice_atanh(tl.div_rn(rest - 1.0, rest + 1.0))
    power = exponent.to(tl.float32)
    return power * LN2_HIGH + (power * LN2_LOW + tail)


@triton.jit
def exponential(k):
    """-log(1 - u) with u = (k + 1/2) / 2**32, precise at both ends."""
    u = (k.to(tl.float32) + 0.5) * 2.3283064365386963e-10
    above = ((k ^ 0xFFFFFFFF).to(tl.float32) + 0.5) * 2.3283064365386963e-10  # 1 - u
    return tl.where(k < 0x80000000, _twice_atanh(tl.div_rn(u, 2.0 - u)), -logarithm(above))


@triton.jit
def block_minimum(k):
    """The smallest exponential of a block, from the first of the block's words."""
    return exponential(k) * 0.00390625


@triton.jit
def block_noise(seed, position, block):
    """The smallest exponential of a block, and the lane that has it."""
    first, second, _, _ = words(seed, position, block, TARGET_BLOCK)
    return block_minimum(first), (second & 255).to(tl.int32)


@triton.jit
def lane_noise(seed, position, tokens, minimum, lane):
    """The exponentials of tokens of one block, from its minimum and the lane that has it."""
    rest = exponential(word(seed, position, tokens, TARGET))
    return tl.where((tokens & 255) == lane, minimum, minimum + rest)


@triton.jit
def load_values(row, tokens, inside, threshold):
    """Load logits as float32: -inf below the threshold and past the vocabulary; NaN stays NaN."""
    values = tl.load(row + tokens, mask=inside, other=float("-inf")).to(tl.float32)
    return tl.where(values < threshold, float("-inf"), values)


@triton.jit
def inverse(temperature):
    """1 / temperature, finite; 1 at temperature 0, where it is not used."""
    return tl.where(temperature == 0.0, 1.0, tl.div_rn(1.0, tl.maximum(temperature, TINY)))


@triton.jit
def finite(x):
    """Whether x is neither NaN nor infinite."""
    return (x > float("-inf")) & (x < float("inf"))


@triton.jit
def at_slot(values, slots, slot):
    """Return the entry of values (N,) that belongs to a slot."""
    return tl.sum(tl.where(slots == slot, values, 0), axis=0)


@triton.jit
def arrive(counter):
    """Increment a counter after everything this program has written; returns the number before."""
    tl.debug_barrier()
    before = tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu")
    tl.debug_barrier()
    return before


@triton.jit
def limit_now(limit):
    """Read a number that other programs may be changing, so that all warps of this program see the
    same value. With a plain load they could see different values and take different branches."""
    return tl.atomic_add(limit, 0, sem="relaxed", scope="gpu")


@triton.jit
def depth_of(parents, node):
    """The number of guesses on the path to a node, itself included; 0 for the text, node -1."""
    depth = 0
    while node >= 0:
        node = tl.load(parents + node).to(tl.int32)
        depth += 1
    return depth
