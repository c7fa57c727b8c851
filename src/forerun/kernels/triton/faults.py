"""What can be wrong with a row that a kernel reads: kind + 16 * slot, and 0 where nothing is."""

import triton
import triton.language as tl

from forerun.kernels.triton.arithmetic import FAR

TARGET_ROW = tl.constexpr(1)
DRAFT_ROW = tl.constexpr(2)
IMPOSSIBLE = tl.constexpr(3)
OUTSIDE = tl.constexpr(4)


@triton.jit
def fault_at(slot, KIND: tl.constexpr):
    return slot * 16 + KIND


@triton.jit
def outside(guesses, slots, fault, V: tl.constexpr):
    """The fault of the first guess that is not in the vocabulary, or else the given one."""
    first = tl.min(tl.where((guesses < 0) | (guesses >= V), slots, FAR), axis=0)
    return tl.where(first < FAR, fault_at(first, OUTSIDE), fault)
