"""Applies top-k, then top-p, then min-p to rows of logits, as `forerun.sampling` defines them.

The three options become one threshold per row; for `forerun.kernels.decide`, logits below it count
as -inf.
"""

from __future__ import annotations

from forerun.kernels.decide import OPTIONS
from forerun.kernels.early_launch import dependent_launch
from forerun.kernels.scratch import CutScratch, Tensor
from forerun.kernels.triton.truncation import STEPS, threshold_kernel

PIECE = 2048
"""The number of tokens of a row that one program reads."""
NUM_WARPS = 4


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
    """Write the smallest logit that is kept in each row of logits (B, N, V), in 16 short launches.

    lengths: (B,) int32; the first lengths + more rows of each sequence count: more is 1 for the
        target's rows and 0 for the draft's.
    temperature: (B,) float32; top_k: (B,) int32, 0 for none; top_p: (B,) float32, 1 for none;
        min_p: (B,) float32, 0 for none.  Ties at an edge are kept.
    out: (B, N) float32; -inf for rows without such options, which are not read.
    scratch: for B * N rows at least.
    """
    num_sequences, num_rows, vocab_size = logits.shape
    num_programs = num_sequences * num_rows * -(-vocab_size // PIECE)
    for by_mass in (False, True):
        for step in range(STEPS.value):
            threshold_kernel[(num_programs,)](
                logits, lengths, temperature, top_k, top_p, min_p, out, scratch.sums,
                scratch.finished, scratch.states, num_rows, more, step, V=vocab_size, PIECE=PIECE,
                BY_MASS=by_mass, num_warps=NUM_WARPS, **dependent_launch(logits.device), **OPTIONS,
            )  # fmt: skip
