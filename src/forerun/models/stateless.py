"""Models that store nothing: every score starts from the whole text.

This is the recompute strategy for models that live in NumPy. They are exact and easy to
write, not fast: a subclass only defines the law after a text.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forerun.models.base import Kept, Parents, check_copy, check_score, check_truncate
from forerun.models.feed import Feed, feeds

Floats = NDArray[np.float64]


@dataclass
class StatelessRows:
    """Lengths that stay zero, so the engine feeds each row's whole text every round."""

    lengths: list[int]
    fed: list[Feed]  # since the last commit


class StatelessModel(ABC):
    """The verbs of `LanguageModel` on top of one method."""

    name: str
    vocab_size: int
    max_context: int | None = None
    scores_trees = True

    @abstractmethod
    def last_logits(self, tokens: NDArray[np.int64], num_logits: int) -> Floats:
        """Log-probabilities (num_logits, V) after each of the last `num_logits` of `tokens`."""

    def start(self, num_rows: int, capacity: int = 0) -> StatelessRows:
        return StatelessRows(lengths=[0] * num_rows, fed=[Feed()] * num_rows)

    def score(
        self,
        state: StatelessRows,
        rows: Sequence[int],
        tokens: Sequence[Sequence[int]],
        num_logits: Sequence[int],
        parents: Sequence[Parents | None] | None = None,
    ) -> Floats:
        check_score(state.lengths, rows, tokens, num_logits, self.vocab_size)
        logits = np.zeros((len(rows), max(num_logits), self.vocab_size))  # (R, max N, V)
        fed = feeds(tokens, parents)
        for index, (row, feed, count) in enumerate(zip(rows, fed, num_logits, strict=True)):
            logits[index, :count] = self._last_logits(feed, count)
            state.fed[row] = feed
        return logits

    def commit(self, state: StatelessRows, rows: Sequence[int], kept: Sequence[Kept]) -> None:
        for row, row_kept in zip(rows, kept, strict=True):
            state.fed[row].path(row, row_kept)
            state.fed[row] = Feed()

    def release(self, state: StatelessRows, row: int) -> None:
        state.fed[row] = Feed()

    def copy_prefix(self, state: StatelessRows, source: int, row: int, length: int) -> int:
        """Nothing is stored, so the length stays 0."""
        check_copy(state.lengths, source, row, length)
        return self.truncate(state, row, length)

    def truncate(self, state: StatelessRows, row: int, length: int) -> int:
        check_truncate(state.lengths, row, length)
        state.fed[row] = Feed()
        return 0

    def _last_logits(self, feed: Feed, num_logits: int) -> Floats:
        """Logits (num_logits, V); each path of a tree is scored as a separate text."""
        tokens = np.asarray(feed.tokens, np.int64)
        text, nodes = tokens[: feed.trunk], tokens[feed.trunk :]
        after_nodes = np.zeros((len(nodes), self.vocab_size))
        for path in map(feed.tree.path, feed.tree.leaves):
            after_nodes[list(path)] = self.last_logits(
                np.concatenate([text, nodes[list(path)]]), len(path)
            )
        if num_logits <= len(nodes):
            return after_nodes[len(nodes) - num_logits :]
        after_text = self.last_logits(text, num_logits - len(nodes))
        return np.concatenate([after_text, after_nodes])


def log_probs(probs: Floats) -> Floats:
    """Logits of a law: log p, with an impossible token at minus infinity."""
    with np.errstate(divide="ignore"):
        return np.log(probs)
