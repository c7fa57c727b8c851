"""How the second launch of `ratio` hears from the first, beside whose last programs it runs.

A sequence has one number, its news, with two bits for every slot: the lower one says that the slot
is done, the other that its guess is kept.  Whoever finishes a slot adds its bits after all that it
wrote, and whoever sees them may read that.  So nobody waits for the end of a launch, and a sequence
that ends early does not wait for its later slots.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from forerun.kernels.triton.arithmetic import FAR

DONE = tl.constexpr(0x15555555)
"""The lower bits of 15 slots."""


@triton.jit
def tell(news, slot, is_kept):
    """Add how a slot ended, after all that this program wrote."""
    what = tl.where(is_kept, 3, 1) << (2 * slot)
    tl.debug_barrier()
    tl.atomic_add(news, what, sem="release", scope="gpu")


@triton.jit
def _end_of(news, slots):
    """(the first slot whose guess is not known to be kept, whether the round ends there)."""
    first = tl.min(tl.where(((news >> (2 * slots)) & 3) == 3, FAR, slots), axis=0)
    return first, ((news >> (2 * first)) & 1) == 1


@triton.jit
def is_past_refusal(news, slot):
    """Whether a guess before this slot is known to be refused."""
    refused = news & ~(news >> 1) & DONE
    return (refused & ((1 << (2 * slot)) - 1)) != 0


@triton.jit
def hear(news, slots):
    """The slot where a sequence ends, as soon as it is known.

    It is told by programs that run by now: a dependent launch begins when all programs of the one
    before it have begun.
    """
    slot, is_known = _end_of(tl.atomic_add(news, 0, sem="acquire", scope="gpu"), slots)
    while is_known == 0:
        slot, is_known = _end_of(tl.atomic_add(news, 0, sem="acquire", scope="gpu"), slots)
    return slot


@triton.jit
def forget(news, PDL: tl.constexpr):
    """Clear the news once nobody adds to them: slots past a refusal still do."""
    if PDL:
        gdc_wait()
    tl.store(news, 0)
