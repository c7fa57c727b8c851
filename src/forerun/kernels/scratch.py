"""The memory of the kernels: scratch memory, and the outcome of a launch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

Tensor = Any
"""A torch tensor; its shape and type stand beside its name."""

FAR = 1 << 30
"""A number above every slot: the value of `limits` between launches."""
LOWEST_KEY = -(2**63 - 1)
"""A number below the key of every token: the value of `keys` between launches."""
SEGMENT = 512
"""The number of tokens whose weights are summed together."""
FEWEST_SEGMENTS = 16
BLOCK, HALF_BLOCK = 256, 128
"""The number of tokens that share a minimum of noise, and the number that a warp reads at once."""
CUT_PIECE, MOST_COLLECTED = 2048, 1024
"""The number of tokens that one program reads when it searches for the threshold of a row, and the
most tokens near the threshold that are collected."""


def padded(count: int) -> int:
    """The next power of two: the length that Triton's vectors must have."""
    return 1 << max(count - 1, 0).bit_length()


def num_segments(vocab_size: int) -> int:
    """The number of segments of a row in scratch memory, a power of two."""
    return max(FEWEST_SEGMENTS, padded(-(-vocab_size // SEGMENT)))


def num_blocks(vocab_size: int) -> int:
    """The number of blocks of a row in scratch memory, a power of two."""
    return padded(-(-vocab_size // BLOCK))


@dataclass(frozen=True)
class Outcome:
    """The decision of a launch, one entry per sequence.

    reached: the target row that the extra token follows; on a chain it is `accepted`.
    fault: 0, or a fault in the input (`decide_trial` explains it); then the other entries of that
        sequence are meaningless.
    """

    reached: Tensor  # (B,) int32
    accepted: Tensor  # (B,) int32
    extra: Tensor  # (B,) int64
    fault: Tensor  # (B,) int32

    @classmethod
    def allocate(cls, num_sequences: int, device: Any) -> Outcome:
        """Allocate an outcome for this many sequences."""
        types = (torch.int32, torch.int32, torch.int64, torch.int32)
        return cls(*(torch.zeros(num_sequences, dtype=kind, device=device) for kind in types))


@dataclass(frozen=True)
class Scratch:
    """Memory for rounds of up to `num_rows` target rows (K + 1) of `num_sequences` sequences.

    A launch resets its counters, so one scratch memory serves any number of launches, one after the
    other.
    """

    num_sequences: int
    num_rows: int
    vocab_size: int
    keys: Tensor  # (B, N) int64: LOWEST_KEY between launches
    counts: Tensor  # (B, N) int32: zero between launches
    finished: Tensor  # (B,) int32: zero between launches
    limits: Tensor  # (B,) int32: FAR between launches
    notes: Tensor  # (B, N, 3, BLOCKS) float32
    rivals: Tensor  # (B, N) int64
    faults: Tensor  # (B, N) int32
    nothing: Tensor  # (1,) float32: stands for an argument that a kernel does not read
    no_tokens: Tensor  # (B,) int32 of zeros: lengths of drafts without tokens
    laws: LawScratch | None

    @classmethod
    def allocate(
        cls,
        num_sequences: int,
        num_rows: int,
        vocab_size: int,
        device: Any,
        *,
        for_match_only: bool = False,
    ) -> Scratch:
        """Allocate scratch memory.

        for_match_only: leave out the part that only `ratio`, `block` and draws need.
        """
        rows = num_sequences, num_rows
        integers = {"dtype": torch.int32, "device": device}
        return cls(
            num_sequences, num_rows, vocab_size,
            torch.full(rows, LOWEST_KEY, dtype=torch.int64, device=device),
            torch.zeros(rows, **integers), torch.zeros(num_sequences, **integers),
            torch.full((num_sequences,), FAR, **integers),
            torch.zeros((*rows, 3, num_blocks(vocab_size)), device=device),
            torch.zeros(rows, dtype=torch.int64, device=device), torch.zeros(rows, **integers),
            torch.zeros(1, device=device), torch.zeros(num_sequences, **integers),
            None if for_match_only else LawScratch.allocate(rows, num_segments(vocab_size), device),
        )  # fmt: skip


@dataclass(frozen=True)
class LawScratch:
    """Further scratch memory for the rules that divide by a draft law."""

    maxima: Tensor  # (B, N, SEGMENTS) float32
    sums: Tensor  # (B, N, SEGMENTS) float32
    draft_maxima: Tensor  # (B, N, SEGMENTS) float32
    draft_sums: Tensor  # (B, N, SEGMENTS) float32
    owed: Tensor  # (B, N, SEGMENTS) float32
    laws: Tensor  # (B, N, 4) float32
    likeliests: Tensor  # (B, N) int32
    ratios: Tensor  # (B, N) float32
    scales: Tensor  # (B, N) float32
    tested: Tensor  # (B, N) int32
    planned: Tensor  # (B,) int32

    @classmethod
    def allocate(cls, rows: tuple[int, int], segments: int, device: Any) -> LawScratch:
        """Allocate scratch memory for these sizes."""
        return cls(
            torch.zeros((*rows, segments), device=device),
            torch.zeros((*rows, segments), device=device),
            torch.zeros((*rows, segments), device=device),
            torch.zeros((*rows, segments), device=device),
            torch.zeros((*rows, segments), device=device), torch.zeros((*rows, 4), device=device),
            torch.zeros(rows, dtype=torch.int32, device=device), torch.zeros(rows, device=device),
            torch.zeros(rows, device=device), torch.zeros(rows, dtype=torch.int32, device=device),
            torch.zeros(rows[0], dtype=torch.int32, device=device),
        )  # fmt: skip


@dataclass(frozen=True)
class CutScratch:
    """Memory through which the programs that search for thresholds of rows pass on their
    results."""

    maxima: Tensor  # (R, BLOCKS) int32
    sums: Tensor  # (R, 16) int64: zero between launches
    counts: Tensor  # (R,) int32: zero between launches
    tokens: Tensor  # (R, 1024) int32
    finished: Tensor  # (R,) int32: zero between launches
    states: Tensor  # (R, 6) int64

    @classmethod
    def allocate(cls, num_rows: int, vocab_size: int, device: Any) -> CutScratch:
        def zeros(*columns: int, dtype: Any = torch.int32) -> Tensor:
            return torch.zeros((num_rows, *columns), dtype=dtype, device=device)

        num_maxima = padded(-(-vocab_size // CUT_PIECE) * (CUT_PIECE // HALF_BLOCK))
        return cls(
            zeros(num_maxima), zeros(16, dtype=torch.int64), zeros(), zeros(MOST_COLLECTED),
            zeros(), zeros(6, dtype=torch.int64),
        )  # fmt: skip
