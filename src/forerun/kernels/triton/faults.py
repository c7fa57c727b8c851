"""Faults in the input of kernels: kind + 16 * slot, or 0 for none."""

import triton
import triton.language as tl

from forerun.kernels.triton.arithmetic import FAR

TARGET_ROW = tl.constexpr(1)
DRAFT_ROW = tl.constexpr(2)
IMPOSSIBLE = tl.constexpr(3)
OUTSIDE = tl.constexpr(4)


@triton.jit
def fault_at(slot, KIND: tl.constexpr):
    """The fault of a kind at a slot."""
    return slot * 16 + KIND


@triton.jit
def outside(guesses, slots, fault, V: tl.constexpr):
    """The fault of the first guess outside the vocabulary; the given fault if there is none."""
    first = tl.min(tl.where((guesses < 0) | (guesses >= V), slots, FAR), axis=0)
    return tl.where(first < FAR, fault_at(first, OUTSIDE), fault)
