"""The recompute strategy: no cache, for models without a reliable one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from forerun.models.base import Kept, check_commit
from forerun.models.forward import Forward
from forerun.models.snapshot import join_rows


class RecomputeRows:
    """Lengths stay zero, so each score sees the whole text of each row."""

    def __init__(self, forward: Forward, num_rows: int) -> None:
        self.lengths = [0] * num_rows
        self._scored = [0] * num_rows
        self._forward = forward

    def score(
        self, rows: Sequence[int], tokens: Sequence[Sequence[int]], num_logits: Sequence[int]
    ) -> Any:
        logits = []
        for row, row_tokens, count in zip(rows, tokens, num_logits, strict=True):
            ids = self._forward.tokens(row_tokens)
            logits.append(self._forward(ids, count, use_cache=False).logits)
            self._scored[row] = len(row_tokens)
        return join_rows(logits)

    def commit(self, rows: Sequence[int], kept: Sequence[Kept]) -> None:
        check_commit(rows, [self._scored[row] for row in rows], kept)
        for row in rows:
            self._scored[row] = 0

    def copy_prefix(self, source: int, row: int, length: int) -> int:
        return self.truncate(row, length)

    def truncate(self, row: int, length: int) -> int:
        """Nothing is stored, so the length stays 0."""
        self._scored[row] = 0
        return 0

    def release(self, row: int) -> None:
        self._scored[row] = 0
