"""What travels through a round: a draft in, a verdict out.

A draft carries *how it was drawn*, because that decides which rules may judge it: a rule that
divides by a draft probability is only exact if the token was really drawn from that law.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import array_api_compat as compat
import numpy as np

from forerun.arrays import Array, to_numpy
from forerun.errors import InputError, explain


class Drawn(Enum):
    """How the tokens of a draft came about."""

    POINT = "point"  # deterministic, or of unknown law: n-gram, argmax, top-k, a user's guess
    SAMPLED = "sampled"  # drawn from the probabilities that come with the draft
    SHARED = "shared"  # drawn with the target's own noise, to agree with it as often as possible


@dataclass(frozen=True)
class Sparse:
    """Draft probabilities given on their support only: ids and probs (B, K, S), ids distinct."""

    ids: Array
    probs: Array


@dataclass(frozen=True)
class Draft:
    """K guessed tokens for each of B sequences, and how they were drawn.

    tokens: (B, K) integers, or (K,) for one sequence, or nested lists whose rows may differ in
    length.  lengths: (B,) how many tokens of each row count; None means all K.
    """

    tokens: Any
    drawn: Drawn
    probs: Array | Sparse | None = None
    logits: Array | None = None
    lengths: Any = None

    @classmethod
    def point(cls, tokens: Any, *, lengths: Any = None) -> Draft:
        """Tokens of a deterministic drafter, or of one whose law is not known."""
        return cls(*_padded(tokens, lengths, Drawn.POINT))

    @classmethod
    def sampled(
        cls,
        tokens: Any,
        probs: Array | Sparse | None = None,
        *,
        logits: Array | None = None,
        lengths: Any = None,
    ) -> Draft:
        """Tokens drawn from probs (B, K, V), from a `Sparse` law, or from softmax(logits)."""
        if (probs is None) == (logits is None):
            received = "neither" if probs is None else "both"
            cure = "Pass one of them; for a draft of unknown law use Draft.point(tokens)."
            raise InputError(
                explain("A sampled draft needs its probs or its logits.", received, cure)
            )
        tokens, drawn, _, _, lengths = _padded(tokens, lengths, Drawn.SAMPLED)
        return cls(tokens, drawn, probs, logits, lengths)

    @classmethod
    def shared(cls, tokens: Any, *, lengths: Any = None) -> Draft:
        """Tokens that won the race of the drafter's law under the target's own noise."""
        return cls(*_padded(tokens, lengths, Drawn.SHARED))


@dataclass(frozen=True)
class Verdict:
    """What a rule decided: the first num_accepted draft tokens, then one extra token.

    num_accepted (B,) and extra (B,) are arrays of the caller's library.  extra is the correction
    after a refusal, or the bonus after full acceptance: there is always exactly one.
    """

    num_accepted: Array  # (B,)
    extra: Array  # (B,)
    draft_tokens: Array  # (B, K)
    rule: str
    lossless: bool

    @property
    def num_emitted(self) -> Array:
        """Tokens that the round adds to each sequence, (B,)."""
        return self.num_accepted + 1

    def tokens(self) -> list[list[int]]:
        """The emitted ids of each row: its accepted tokens, then the extra one."""
        drafted = to_numpy(self.draft_tokens)
        counts, extra = to_numpy(self.num_accepted), to_numpy(self.extra)
        return [
            [*drafted[row, : counts[row]].tolist(), int(extra[row])] for row in range(len(counts))
        ]


def _padded(tokens: Any, lengths: Any, drawn: Drawn) -> tuple[Any, Drawn, None, None, Any]:
    """Nested lists whose rows differ in length become a padded array and its lengths."""
    if compat.is_array_api_obj(tokens) or not isinstance(tokens, Sequence):
        return tokens, drawn, None, None, lengths
    if len(tokens) == 0:
        wrong = "An empty list says neither how many sequences there are nor how many tokens."
        cure = "For a round without guesses (K = 0) pass shape (B, 0), for one sequence [[]]."
        raise InputError(explain(wrong, tokens, cure))
    if not all(isinstance(row, Sequence | np.ndarray) for row in tokens):
        return _integers(tokens), drawn, None, None, lengths
    counts = [len(row) for row in tokens]
    if lengths is None and len(set(counts)) > 1:
        lengths = counts
    table = [list(row) + [0] * (max(counts) - len(row)) for row in tokens]
    return _integers(table), drawn, None, None, lengths


def _integers(tokens: list[Any] | Sequence[Any]) -> Any:
    """Lists of ids as a NumPy array; an empty row would otherwise become floating point."""
    found = np.asarray(tokens)
    return found.astype(np.int64) if found.size == 0 else found
