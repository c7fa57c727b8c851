"""Launch the kernels of `siblings`, on preallocated memory as in `forerun.kernels.decide`."""

from __future__ import annotations

from forerun.kernels.decide import LAW_WARPS, LAWS, OPTIONS, Round, launch_laws
from forerun.kernels.grids import num_tiles
from forerun.kernels.scratch import Outcome, Scratch, num_segments, padded
from forerun.kernels.triton.siblings import sibling_kernel
from forerun.noise.addresses import Purpose
from forerun.trees.tree import ROOT, Tree

TILE = 8
"""Segments that a program sums."""


def most_refusals(tree: Tree) -> int:
    """Children that a walk can refuse, at most, on its way down."""
    most = [0] * (len(tree) + 1)  # from each node on; the last entry is the text's
    for node in (*reversed(range(len(tree))), ROOT):
        children = tree.children[node]
        ways = (tried + most[child] for tried, child in enumerate(children))
        most[node] = max(len(children), *ways) if children else 0
    return most[ROOT]


def decide_siblings(
    made: Round, scratch: Scratch, out: Outcome, most_refused: int | None = None
) -> None:
    """`siblings` on chains and trees, in two launches and one for every child that may be refused.

    made: with parents.
    most_refused: children that a walk can refuse, at most: `most_refusals` of the tree.
    """
    assert made.parents is not None, "chains have parents too"
    laws = launch_laws(LAWS, made, scratch, out, Purpose.RESIDUAL, 0)
    num_sequences, num_rows, vocab_size = made.logits.shape
    most_refused = num_rows - 1 if most_refused is None else most_refused
    for launch in range(most_refused + 1):
        is_first = launch == 0
        sibling_kernel[(num_sequences * (1 if is_first else num_tiles(vocab_size, TILE)),)](
            made.logits,
            made.logits if made.draft_logits is None else made.draft_logits,
            made.tokens,
            made.parents,
            made.temperature,
            made.seeds,
            made.positions,
            scratch.nothing if made.thresholds is None else made.thresholds,
            scratch.nothing if made.draft_thresholds is None else made.draft_thresholds,
            made.lengths,
            laws.maxima,
            laws.sums,
            laws.owed,
            laws.laws,
            laws.likeliests,
            laws.ratios,
            laws.tested,
            laws.planned,
            scratch.finished,
            out.reached,
            out.accepted,
            out.extra,
            out.fault,
            num_rows,
            FIRST=is_first,
            V=vocab_size,
            SEGMENTS=num_segments(vocab_size),
            TILE=TILE,
            ROWS=padded(num_rows),
            POINT=made.draft_logits is None,
            TRUNCATED=made.thresholds is not None,
            num_warps=LAW_WARPS,
            **OPTIONS,
        )
