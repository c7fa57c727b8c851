"""Per-row options that cut a law: top-k, then top-p, then min-p, as on the host.

They become one threshold per row, below which `forerun.kernels.decide` takes logits as -inf.
"""

from __future__ import annotations

from forerun.kernels.decide import OPTIONS
from forerun.kernels.scratch import Tensor
from forerun.kernels.triton.truncation import threshold_kernel

NUM_WARPS = 16


def find_thresholds(
    logits: Tensor,
    lengths: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    out: Tensor,
    *,
    more: int,
) -> None:
    """The smallest logit that is kept, for each row of logits (B, N, V), in one launch.

    lengths: (B,) int32; the first lengths + more rows of each sequence count: more is 1 for the
        target's rows and 0 for the draft's.
    temperature: (B,) float32; top_k: (B,) int32, 0 for none; top_p: (B,) float32, 1 for none;
        min_p: (B,) float32, 0 for none.  Ties at an edge are kept.
    out: (B, N) float32; -inf for rows that nothing is cut from, which are not read.
    """
    num_sequences, num_rows, vocab_size = logits.shape
    threshold_kernel[(num_sequences * num_rows,)](
        logits,
        lengths,
        temperature,
        top_k,
        top_p,
        min_p,
        out,
        num_rows,
        more,
        V=vocab_size,
        num_warps=NUM_WARPS,
        **OPTIONS,
    )
