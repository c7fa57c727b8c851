"""How the rows of a round are cut into programs.  No outcome depends on it."""

from __future__ import annotations

from typing import NamedTuple

from forerun.gpu.scratch import SEGMENT

MANY_PROGRAMS = 4096


def num_tiles(vocab_size: int, tile: int) -> int:
    """Programs that share a row."""
    return -(-vocab_size // (tile * SEGMENT))


class LawPiece(NamedTuple):
    """How rows are cut into programs where weights are summed.  One warp sums a segment, so no sum
    depends on it."""

    step: int  # segments that are read at a time
    steps: int = 1
    stages: int = 1


def law_piece(num_rows: int, vocab_size: int) -> LawPiece:
    """Small pieces where rows are few, so that they fill the device."""
    return LawPiece(4 if num_rows * num_tiles(vocab_size, 4) <= MANY_PROGRAMS else 8)


def residual_piece(num_rows: int, vocab_size: int) -> LawPiece:
    return law_piece(num_rows, vocab_size)


class RacePiece(NamedTuple):
    """How `match` is cut into programs for few rows.  The winner of a race does not depend on it,
    nor on which of the two is taken."""

    step: int  # blocks of a program
    num_warps: int
    scouts: int  # tokens of the whole row that are timed first


class SiftPiece(NamedTuple):
    """How it is cut for many rows."""

    step: int  # blocks that are read at a time
    steps: int
    stages: int
    num_warps: int
    bar_warps: int = 4


def race_piece(num_rows: int, vocab_size: int) -> RacePiece | SiftPiece:
    """Small pieces where rows are few, so that they fill the device."""
    if num_rows <= 12:
        return RacePiece(8, 4, 128)
    return SiftPiece(8, 4, 3, 4) if num_rows <= 128 else SiftPiece(16, 16, 3, 8)
