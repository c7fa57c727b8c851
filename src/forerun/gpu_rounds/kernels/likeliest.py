"""The normalisation of log-probabilities."""

import triton
import triton.language as tl


@triton.jit
def log_totals(logits, totals, V: tl.constexpr, BLOCK: tl.constexpr):
    """Logarithms of the sums of exp(logits) (rows, V), one program per row: the same bits in every
    batch, and no copy of the logits."""
    row = tl.program_id(0).to(tl.int64)
    token = tl.arange(0, BLOCK)
    most = tl.full((BLOCK,), float("-inf"), tl.float32)
    sums = tl.zeros((BLOCK,), tl.float32)
    for begin in range(0, V, BLOCK):
        there = begin + token < V
        value = tl.load(logits + row * V + begin + token, mask=there, other=float("-inf"))
        higher = tl.maximum(most, value)
        level = tl.where(higher == float("-inf"), 0.0, higher)
        sums = sums * tl.exp(most - level) + tl.exp(value - level)
        most = higher
    highest = tl.max(most, axis=0)
    level = tl.where(highest == float("-inf"), 0.0, highest)
    tl.store(totals + row, level + tl.log(tl.sum(sums * tl.exp(most - level), axis=0)))
