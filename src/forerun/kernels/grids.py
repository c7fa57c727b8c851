"""Cuts the rows of a round into programs.  No outcome depends on the cut.

The choices were the fastest on an H200 (benchmarks/gpu_kernels.py --sweep).
"""

from __future__ import annotations

from typing import NamedTuple

from forerun.kernels.scratch import SEGMENT

FEW, SOME, MANY = 2**21, 2**24, 2**26
"""Numbers of tokens in all rows of a round: 16, 130 and 520 rows of 128,256."""


class LawPiece(NamedTuple):
    """A cut of rows for summing weights.  One warp sums a segment, so no sum depends on the cut;
    steps are multiples of the warps of a program."""

    step: int  # segments that are read at a time
    steps: int = 1
    stages: int = 1  # stages of the pipeline that reads


def law_piece(num_rows: int, vocab_size: int, skips: bool) -> LawPiece:
    """The cut for summing weights.

    skips: rows past a refusal are not read, for which small pieces are better.
    """
    num_tokens = num_rows * vocab_size
    if num_tokens > MANY:
        return LawPiece(4, 8, 3)
    if num_tokens > SOME:
        return LawPiece(8) if skips else LawPiece(8, 2)
    return LawPiece(4)


class RacePiece(NamedTuple):
    """A cut of rows for `match`.  The winner of a race does not depend on it."""

    lines: int  # half blocks that a warp reads, at most 16; an even number in a program
    num_warps: int
    scouts: int  # tokens that a program times first; 0: a launch before it times them
    bar_warps: int = 8  # the warps of that launch


def race_piece(num_rows: int, vocab_size: int) -> RacePiece:
    """The cut for `match`: small pieces if rows are few, so that they fill the device."""
    num_tokens = num_rows * vocab_size
    if num_tokens <= FEW:
        return RacePiece(4, 4, 128)
    return RacePiece(8, 2, 0) if num_tokens <= SOME else RacePiece(16, 2, 0, 4)


def num_tiles(vocab_size: int, tile: int) -> int:
    """The number of programs that share a row, each with `tile` segments."""
    return -(-vocab_size // (tile * SEGMENT))
