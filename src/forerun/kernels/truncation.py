"""Applies top-k, then top-p, then min-p to rows of logits, as `forerun.sampling` defines them.

The three options become one threshold per row; for `forerun.kernels.decide`, logits below it count
as -inf.
"""

from __future__ import annotations

from forerun.kernels.decide import OPTIONS
from forerun.kernels.early_launch import dependent_launch
from forerun.kernels.scratch import CUT_PIECE, MOST_COLLECTED, CutScratch, Tensor
from forerun.kernels.triton.truncation import (
    CUT_BLOCK,
    WAYS,
    bound_kernel,
    collect_kernel,
    divide_kernel,
)

NUM_WARPS = 4
DIVISIONS = 3
"""How often the interval that contains a top-p threshold is divided. The parts become 28, 1.75,
0.11 and 0.007 temperatures wide."""


def find_thresholds(
    logits: Tensor,
    lengths: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    out: Tensor,
    scratch: CutScratch,
    *,
    more: int,
) -> None:
    """Write the smallest logit that is kept in each row of logits (B, N, V), in five launches.

    lengths: (B,) int32; the first lengths + more rows of each sequence count: more is 1 for the
        target's rows and 0 for the draft's.
    temperature: (B,) float32; top_k: (B,) int32, 0 for none; top_p: (B,) float32, 1 for none;
        min_p: (B,) float32, 0 for none.  Ties at an edge are kept.
    out: (B, N) float32; -inf for rows without such options, which are not read.
    scratch: for B * N rows at least.
    """
    num_sequences, num_rows, vocab_size = logits.shape
    assert scratch.maxima.shape[1] * CUT_BLOCK.value >= vocab_size, "maxima of every block"
    assert scratch.sums.shape[1] >= WAYS.value, "a sum for every part of the interval"
    num_programs = num_sequences * num_rows * -(-vocab_size // CUT_PIECE)
    options = lengths, temperature, top_k, top_p, min_p
    how = {"V": vocab_size, "PIECE": CUT_PIECE, "num_warps": NUM_WARPS} | OPTIONS
    how |= dependent_launch(logits.device)
    bound_kernel[(num_programs,)](
        logits, *options, out, scratch.maxima, scratch.finished, scratch.states, num_rows, more,
        BLOCKS=scratch.maxima.shape[1], **how,
    )  # fmt: skip
    for step in range(DIVISIONS):
        divide_kernel[(num_programs,)](
            logits, *options, scratch.sums, scratch.finished, scratch.states, num_rows, more, step,
            MOST=MOST_COLLECTED, **how,
        )  # fmt: skip
    collect_kernel[(num_programs,)](
        logits, *options, out, scratch.counts, scratch.tokens, scratch.finished, scratch.states,
        num_rows, more, MOST=MOST_COLLECTED, **how,
    )  # fmt: skip
