"""Models that store nothing: every score starts from the whole text.

This is the recompute strategy for models that live in NumPy. They exist to be exact and easy to
write, not fast, so the only thing a subclass says is what follows a text.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forerun.models.base import check_commit, check_score

Floats = NDArray[np.float64]


@dataclass
class StatelessRows:
    """Lengths that stay zero, so the engine feeds each row's whole text every round."""

    lengths: list[int]
    scored: list[int]


class StatelessModel(ABC):
    """The verbs of `LanguageModel` on top of one method."""

    name: str
    vocab_size: int
    max_context: int | None = None

    @abstractmethod
    def last_logits(self, tokens: NDArray[np.int64], num_logits: int) -> Floats:
        """Log-probabilities (num_logits, V) after each of the last `num_logits` of `tokens`."""

    def start(self, num_rows: int, capacity: int) -> StatelessRows:
        return StatelessRows(lengths=[0] * num_rows, scored=[0] * num_rows)

    def score(
        self,
        state: StatelessRows,
        rows: Sequence[int],
        tokens: Sequence[Sequence[int]],
        num_logits: Sequence[int],
    ) -> Floats:
        check_score(state.lengths, rows, tokens, num_logits, self.vocab_size)
        logits = np.zeros((len(rows), max(num_logits), self.vocab_size))  # (R, max N, V)
        for index, (row, row_tokens, count) in enumerate(
            zip(rows, tokens, num_logits, strict=True)
        ):
            logits[index, :count] = self.last_logits(np.asarray(row_tokens, np.int64), count)
            state.scored[row] = len(row_tokens)
        return logits

    def commit(self, state: StatelessRows, rows: Sequence[int], kept: Sequence[int]) -> None:
        check_commit(rows, [state.scored[row] for row in rows], kept)
        for row in rows:
            state.scored[row] = 0

    def release(self, state: StatelessRows, row: int) -> None:
        state.scored[row] = 0


def log_probs(probs: Floats) -> Floats:
    """Logits of a law: log p, with an impossible token at minus infinity."""
    with np.errstate(divide="ignore"):
        return np.log(probs)
