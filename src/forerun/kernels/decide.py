"""Launches the kernels on preallocated memory: no host work, no synchronisation, static shapes.

All of it can be captured in a CUDA graph: make a `Round` of the tensors that the graph reads, a
`Scratch` and an `Outcome` beforehand, and launch.  Contents are not checked on the host;
`Outcome.fault` says what a kernel has found wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from forerun.kernels.early_launch import dependent_launch
from forerun.kernels.scratch import (
    HALF_BLOCK,
    SEGMENT,
    LawScratch,
    Outcome,
    Scratch,
    Tensor,
    num_blocks,
    num_segments,
    padded,
)
from forerun.kernels.triton.match import bar_kernel, sift_kernel
from forerun.kernels.triton.ratios import ratio_kernel
from forerun.kernels.triton.residuals import residual_kernel
from forerun.noise.addresses import Purpose

# How rows are cut into programs.  No outcome depends on it; these cuts were the fastest on an H200
# (benchmarks/gpu_kernels.py --sweep).
FEW, SOME, MANY = 2**21, 2**24, 2**26
"""Thresholds for the number of tokens in all rows of a round: about 16, 130 and 520 rows of a
vocabulary of 128,256. They decide how rows are cut."""


class LawPiece(NamedTuple):
    """How rows are cut into pieces for summing weights. One warp sums a whole segment, so the sums
    do not depend on the cut. A step is a multiple of the warps of a program."""

    step: int  # segments that are read at a time
    steps: int = 1
    stages: int = 1  # stages of the pipeline that reads


def law_piece(num_rows: int, vocab_size: int, skips: bool) -> LawPiece:
    """Choose how to cut rows for summing weights.

    skips: whether rows after a refusal are left unread; small pieces are better then.
    """
    num_tokens = num_rows * vocab_size
    if num_tokens > MANY:
        return LawPiece(4, 8, 3)
    if num_tokens > SOME:
        return LawPiece(8) if skips else LawPiece(8, 2)
    return LawPiece(4)


class RacePiece(NamedTuple):
    """How rows are cut into pieces for `match`. The winner of a race does not depend on the cut."""

    lines: int  # half blocks that a warp reads, at most 16; an even number in a program
    num_warps: int
    scouts: int  # tokens that a program times first; 0: a launch before it times them
    bar_warps: int = 8  # the warps of that launch


def race_piece(num_rows: int, vocab_size: int) -> RacePiece:
    """Choose how to cut rows for `match`: into small pieces if there are few rows, so that they
    fill the device."""
    num_tokens = num_rows * vocab_size
    if num_tokens <= FEW:
        return RacePiece(4, 4, 128)
    return RacePiece(8, 2, 0) if num_tokens <= SOME else RacePiece(16, 2, 0, 4)


def num_tiles(vocab_size: int, tile: int) -> int:
    """The number of programs that share a row, each with `tile` segments."""
    return -(-vocab_size // (tile * SEGMENT))


LAW_WARPS = 4
"""The number of warps in programs that sum weights. The order of the sums depends on it
(docs/gpu.md)."""
AT_ONCE = 2**23
"""A limit for the number of tokens in all target rows of a round: 65 rows of 128,256. Up to it,
`ratio` and `block` load rows before they know which ones count; above it, `ratio` looks for a
refusal first."""
OPTIONS: dict[str, Any] = {"enable_fp_fusion": False}
RATIO, BLOCKWISE, SAMPLE = 0, 1, 2


@dataclass(frozen=True)
class Round:
    """The input of a launch, for B sequences of K draft tokens, all of it on the device.

    logits: row 0 gives the law after the text, row i + 1 that after draft token i; float32,
        bfloat16 or float16, contiguous, at an address divisible by 16.
    seeds: the bits of unsigned 64-bit seeds.
    positions: the position of the first token that the round emits.
    draft_logits: softmax(draft_logits / temperature) is the law that each token was drawn from, for
        `ratio` and `block`; None for tokens of a deterministic drafter, which are point masses.
    parents: for trees the parent of each node, -1 for the text; None for chains.
    thresholds, draft_thresholds: logits below count as -inf.  If there are draft logits, both are
        given or neither.
    """

    logits: Tensor  # (B, K + 1, V)
    tokens: Tensor  # (B, K) int64
    lengths: Tensor  # (B,) int32, the number of tokens of each row that count
    temperature: Tensor  # (B,) float32, 0 for greedy
    seeds: Tensor  # (B,) int64
    positions: Tensor  # (B,) int64
    draft_logits: Tensor | None = None  # (B, K, V)
    parents: Tensor | None = None  # (B, K) int32
    thresholds: Tensor | None = None  # (B, K + 1) float32
    draft_thresholds: Tensor | None = None  # (B, K) float32


def decide_match(made: Round, scratch: Scratch, out: Outcome) -> None:
    """Decide `match` on chains and trees, in one launch, or in two if there are many rows."""
    num_sequences, num_rows, vocab_size = made.logits.shape
    piece = race_piece(scratch.num_sequences * scratch.num_rows, vocab_size)
    inputs = (
        made.logits,
        made.tokens,
        made.lengths if made.parents is None else made.parents,
        made.lengths,
        made.temperature,
        made.seeds,
        made.positions,
        scratch.nothing if made.thresholds is None else made.thresholds,
        scratch.notes,
        scratch.rivals,
        scratch.limits,
    )
    options = OPTIONS | {
        "V": vocab_size,
        "BLOCKS": num_blocks(vocab_size),
        "ROWS": padded(num_rows),
        "TREE": made.parents is not None,
        "TRUNCATED": made.thresholds is not None,
    }
    overlap: dict[str, Any] = {"PDL": False}
    if piece.scouts == 0:
        overlap = dependent_launch(made.logits.device)
        bar_kernel[(num_sequences * num_rows,)](
            *inputs, num_rows, PDL=overlap["PDL"], num_warps=piece.bar_warps, **options
        )
    num_tokens = piece.lines * piece.num_warps * HALF_BLOCK
    sift_kernel[(num_sequences * num_rows * -(-vocab_size // num_tokens),)](
        *inputs, scratch.keys, scratch.finished, out.reached, out.accepted, out.extra, out.fault,
        num_sequences, num_rows, LINES=piece.lines, WARPS=piece.num_warps,
        SCOUTS=min(piece.scouts, num_blocks(vocab_size)), num_warps=piece.num_warps, **overlap,
        **options,
    )  # fmt: skip


def decide_ratio(made: Round, scratch: Scratch, out: Outcome) -> None:
    """Decide `ratio` on chains, in two launches."""
    laws = launch_laws(RATIO, made, scratch, out, Purpose.RESIDUAL, 0)
    _launch_residuals(RATIO, made, scratch, laws, out)


def decide_block(made: Round, scratch: Scratch, out: Outcome) -> None:
    """Decide `block` on chains, in two launches."""
    laws = launch_laws(BLOCKWISE, made, scratch, out, Purpose.RESIDUAL, 0)
    _launch_residuals(BLOCKWISE, made, scratch, laws, out)


def sample(
    logits: Tensor,
    temperature: Tensor,
    seeds: Tensor,
    positions: Tensor,
    purpose: Purpose,
    slot: int,
    scratch: Scratch,
    out: Outcome,
    thresholds: Tensor | None = None,
) -> None:
    """Sample one token for each row of logits (B, V) into `out.extra`, in one launch.

    purpose: TARGET races under the target's noise at positions (B,): plain sampling, and drafting
        for `match`, where a guess has the position it is for.  slot is not used.
        DRAFT draws with the drafter's own number, as `forerun.drafters.model` does: positions (B,)
        of the round's first token, and the slot of the guess in the draft.
    thresholds: (B,) float32; scratch: allocated for one row.
    """
    made = Round(
        logits[:, None, :],
        out.extra,  # stands for draft tokens, of which none counts
        scratch.no_tokens,
        temperature,
        seeds,
        positions,
        thresholds=thresholds,
    )
    if purpose is Purpose.TARGET:
        decide_match(made, scratch, out)
    else:
        launch_laws(SAMPLE, made, scratch, out, purpose, slot)


def launch_laws(
    rule: int, made: Round, scratch: Scratch, out: Outcome, purpose: Purpose, slot: int
) -> LawScratch:
    """The first launch of the rules that divide by a draft law, and the only one of `sample`."""
    laws = scratch.laws
    assert laws is not None, "this scratch was allocated for `match` only"
    num_sequences, num_rows, vocab_size = made.logits.shape
    piece = _law_piece(rule, made)
    num_programs = num_sequences * num_rows * num_tiles(vocab_size, piece.step * piece.steps)
    is_large = made.logits.numel() > AT_ONCE
    ratio_kernel[(num_programs,)](
        made.logits, made.logits if made.draft_logits is None else made.draft_logits, made.tokens,
        made.lengths, made.temperature, made.seeds, made.positions,
        scratch.nothing if made.thresholds is None else made.thresholds,
        scratch.nothing if made.draft_thresholds is None else made.draft_thresholds, laws.maxima,
        laws.sums, laws.draft_maxima, laws.draft_sums, laws.laws, laws.likeliests, scratch.counts,
        scratch.finished, scratch.limits, laws.ratios, scratch.faults, laws.scales, laws.tested,
        laws.planned, out.reached, out.accepted, out.extra, out.fault, num_sequences, num_rows,
        slot, PURPOSE=int(purpose), RULE=rule, V=vocab_size, SEGMENTS=num_segments(vocab_size),
        TILE=piece.step, STEPS=piece.steps, STAGES=piece.stages, ROWS=padded(num_rows),
        POINT=made.draft_logits is None, SKIP=is_large, EAGER=not is_large and piece.steps == 1,
        TRUNCATED=made.thresholds is not None,
        PDL=rule in (RATIO, BLOCKWISE) and dependent_launch(made.logits.device)["PDL"],
        num_warps=LAW_WARPS, **OPTIONS,
    )  # fmt: skip
    return laws


def _launch_residuals(
    rule: int, made: Round, scratch: Scratch, laws: LawScratch, out: Outcome
) -> None:
    """The second launch, which decides `ratio`, and sums the residuals of `block`."""
    num_sequences, num_rows, vocab_size = made.logits.shape
    num_slots = 1 if rule == RATIO else num_rows - 1
    if num_slots == 0:
        return
    piece = _law_piece(rule, made)
    num_programs = num_sequences * num_slots * num_tiles(vocab_size, piece.step * piece.steps)
    residual_kernel[(num_programs,)](
        made.logits, made.logits if made.draft_logits is None else made.draft_logits, made.tokens,
        made.temperature, made.seeds, made.positions,
        scratch.nothing if made.thresholds is None else made.thresholds,
        scratch.nothing if made.draft_thresholds is None else made.draft_thresholds, made.lengths,
        laws.maxima, laws.sums, laws.owed, laws.laws, laws.likeliests, laws.ratios, scratch.faults,
        laws.scales, laws.tested, laws.planned, scratch.limits, scratch.finished, out.reached,
        out.accepted, out.extra, out.fault, num_sequences, num_rows, num_slots,
        BLOCKWISE=rule == BLOCKWISE, V=vocab_size, SEGMENTS=num_segments(vocab_size),
        TILE=piece.step, STEPS=piece.steps, STAGES=piece.stages, ROWS=padded(num_rows),
        POINT=made.draft_logits is None, TRUNCATED=made.thresholds is not None, num_warps=LAW_WARPS,
        **dependent_launch(made.logits.device), **OPTIONS,
    )  # fmt: skip


def _law_piece(rule: int, made: Round) -> LawPiece:
    """How rows are cut into programs.

    Steps are twice as wide for logits of 16 bits, of which a warp reads two segments at once: one
    warp must have all of a segment, or its sum would depend on the cut.
    """
    num_sequences, num_rows, vocab_size = made.logits.shape
    piece = law_piece(num_sequences * num_rows, vocab_size, rule == RATIO)
    laws = (made.logits, made.draft_logits)
    is_narrow = any(law is not None and law.element_size() == 2 for law in laws)
    return piece._replace(step=2 * piece.step) if is_narrow else piece
