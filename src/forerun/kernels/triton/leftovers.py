"""What the refused children of a node leave of the target's law, at any tokens.

Nothing is kept of it but the sums that make it a law: it is computed again from the logits.
"""

import triton
import triton.language as tl

from forerun.kernels.triton.arithmetic import load_values
from forerun.kernels.triton.drawing import power


@triton.jit
def chance_at(row, columns, inside, threshold, rate, law):
    """Probabilities at some tokens; law: largest logit and mass of the row, (2,)."""
    values = load_values(row, columns, inside, threshold)
    largest = tl.load(law, cache_modifier=".cg")
    return power(values, largest, rate) * tl.div_rn(1.0, tl.load(law + 1, cache_modifier=".cg"))


@triton.jit
def _draft_chance(
    draft_row,
    token,
    columns,
    inside,
    threshold,
    rate,
    law,
    POINT: tl.constexpr,
):
    """The same for a node, which was drawn from a row of logits or is certain."""
    if POINT:
        chance = (columns == token).to(tl.float32)
    else:
        chance = chance_at(draft_row, columns, inside, threshold, rate, law + 2)
    return chance


@triton.jit
def left_over(
    logits,
    draft_logits,
    tokens,
    thresholds,
    draft_thresholds,
    laws,
    refused,
    rests,
    reached,
    num_refused,
    columns,
    rate,
    V: tl.constexpr,
    POINT: tl.constexpr,
    TRUNCATED: tl.constexpr,
):
    """What the refused children leave of the target's law, not normalised by the last of them.

    All pointers are to what one sequence has.  rests: the sums for the refused children but the
    last.
    """
    inside = columns < V
    threshold = float("-inf")
    if TRUNCATED:
        threshold = tl.load(thresholds + reached)
    row = logits + reached.to(tl.int64) * V
    left = chance_at(row, columns, inside, threshold, rate, laws + reached * 4)
    count = 0
    rest = 1.0
    while count < num_refused:
        node = tl.load(refused + count, cache_modifier=".cg")
        if TRUNCATED:
            threshold = tl.load(draft_thresholds + node)
        drawn = _draft_chance(
            draft_logits + node.to(tl.int64) * V,
            tl.load(tokens + node),
            columns,
            inside,
            threshold,
            rate,
            laws + node * 4,
            POINT,
        )
        left = tl.maximum(left * tl.div_rn(1.0, rest) - drawn, 0.0)
        rest = tl.load(rests + count, cache_modifier=".cg")
        count += 1
    return left
