"""Passes results from the first launch of `ratio` to the second, which overlaps its end.

A sequence has one number, its news, with two bits for every slot: the lower bit says that the slot
is done, the higher one that its guess is kept.  The program that finishes a slot adds its bits
after everything it has written, and a program that sees them may read that.  So no program waits
for the end of a launch, and a sequence that ends early does not wait for its later slots.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from forerun.kernels.triton.arithmetic import FAR

DONE = tl.constexpr(0x15555555)
"""The lower bits of all 15 slots."""


@triton.jit
def tell(news, slot, is_kept):
    """Add the bits of a slot to the news, after everything this program has written."""
    what = tl.where(is_kept, 3, 1) << (2 * slot)
    tl.debug_barrier()
    tl.atomic_add(news, what, sem="release", scope="gpu")


@triton.jit
def _end_of(news, slots):
    """The first slot whose guess is not known to be kept, and whether it is known that the round
    ends there."""
    first = tl.min(tl.where(((news >> (2 * slots)) & 3) == 3, FAR, slots), axis=0)
    return first, ((news >> (2 * first)) & 1) == 1


@triton.jit
def is_past_refusal(news, slot):
    """Whether a guess before this slot is known to be refused."""
    refused = news & ~(news >> 1) & DONE
    return (refused & ((1 << (2 * slot)) - 1)) != 0


@triton.jit
def hear(news, slots):
    """Wait until it is known at which slot a sequence ends, and return that slot.

    The programs that report it are running: a dependent launch begins when all programs of the
    launch before it have begun.
    """
    slot, is_known = _end_of(tl.atomic_add(news, 0, sem="acquire", scope="gpu"), slots)
    while is_known == 0:
        slot, is_known = _end_of(tl.atomic_add(news, 0, sem="acquire", scope="gpu"), slots)
    return slot


@triton.jit
def forget(news, PDL: tl.constexpr):
    """Clear the news when no program adds to them any more; those of slots past a refusal do."""
    if PDL:
        gdc_wait()
    tl.store(news, 0)
