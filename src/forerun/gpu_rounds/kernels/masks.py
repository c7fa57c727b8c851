"""Forbids tokens in a round, in place: sets the logits to -inf that a grammar does not allow."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def forbid(
    logits,  # (R, V)
    is_masked,  # (R,) int32
    words,  # (R, W) int32: token t is allowed if bit t % 32 of word t // 32 is set
    V: tl.constexpr,
    W: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Set the logits of tokens that are not allowed to -inf."""
    row = tl.program_id(0)
    if tl.load(is_masked + row) != 0:
        tokens = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        inside = tokens < V
        word = tl.load(words + row * W + tokens // 32, mask=inside, other=-1)
        is_forbidden = ((word >> (tokens % 32)) & 1) == 0
        place = logits + row.to(tl.int64) * V + tokens
        tl.store(place, float("-inf"), mask=inside & is_forbidden)
