"""Models that store nothing, and any Python function as such a model.

Every score starts from the whole text: the recompute strategy for models that live in NumPy.  They
are exact and easy to write, not fast: a subclass only defines the law after a text.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.base.errors import InputError, explain
from forerun.models.base import Kept, Parents, check_copy, check_score, check_truncate
from forerun.models.feed import Feed, feeds

Floats = NDArray[np.float64]

# The largest deviation of a sum from 1; functions may compute in half precision.
SUM_TOLERANCE = 1e-2


@dataclass
class StatelessRows:
    """Rows whose lengths stay zero, so that the engine feeds the whole text in every round."""

    lengths: list[int]
    fed: list[Feed]  # since the last commit


class StatelessModel(ABC):
    """The methods of `LanguageModel` for subclasses that define `last_logits` only."""

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
    """log p of probabilities; minus infinity where p is 0."""
    with np.errstate(divide="ignore"):
        return np.log(probs)


class FunctionModel(StatelessModel):
    """Wraps `function(ids) -> law`, where `ids` is a 1-D integer array of the whole text.

    The function returns either (len(ids), V), row i being the law of what follows `ids[:i + 1]`,
    or (V,), the law of what follows the text. It returns probabilities, or any unnormalised
    logarithm of them when `logits=True`. Without `vocab_size` the function is called once with the
    text `[0]` to find V.
    """

    tokenizer: Any = None  # set by `wrap(function, tokenizer)`

    def __init__(
        self,
        function: Callable[[NDArray[np.int64]], Any],
        vocab_size: int | None = None,
        logits: bool = False,
    ) -> None:
        self.function = function
        self.logits = logits
        self.name = getattr(function, "__name__", type(function).__name__)
        self.vocab_size = vocab_size or self._evaluate(np.zeros(1, np.int64)).shape[-1]

    def last_logits(self, tokens: NDArray[np.int64], num_logits: int) -> Floats:
        rows = self._evaluate(tokens)
        if rows.ndim == 1:  # only the last law was returned: call the function for each earlier one
            earlier = [
                self._evaluate(tokens[:end])
                for end in range(len(tokens) - num_logits + 1, len(tokens))
            ]
            rows = np.stack([*earlier, rows])
        if rows.shape[-1] != self.vocab_size:
            raise InputError(
                explain(
                    f"The function {self.name!r} must return {self.vocab_size} numbers per token.",
                    f"shape {rows.shape}",
                    "Pass the right vocab_size, or let it be found.",
                )
            )
        rows = rows[-num_logits:]  # (num_logits, V)
        return rows if self.logits else log_probs(self._checked(rows))

    def _evaluate(self, tokens: NDArray[np.int64]) -> Floats:
        """Call the function; returns an array (len(tokens), V) or (V,), or raises InputError."""
        rows = np.asarray(self.function(tokens), np.float64)
        if rows.ndim == 1 or (rows.ndim == 2 and len(rows) == len(tokens)):
            return rows
        raise InputError(
            explain(
                f"The function {self.name!r} must return one distribution per token, "
                "(len(ids), V), or the last one, (V,).",
                f"shape {rows.shape} for {len(tokens)} tokens",
                "Remove a batch axis if there is one.",
            )
        )

    def _checked(self, probs: Floats) -> Floats:
        """Probabilities (..., V), or InputError if rows are no distributions."""
        sums = probs.sum(-1)
        if (probs >= 0).all() and (np.abs(sums - 1) <= SUM_TOLERANCE).all():
            return probs
        raise InputError(
            explain(
                f"The function {self.name!r} must return probabilities.",
                f"a smallest entry of {probs.min():.3g} and sums from {sums.min():.3g} "
                f"to {sums.max():.3g}",
                "Apply a softmax, or pass logits=True.",
            )
        )
