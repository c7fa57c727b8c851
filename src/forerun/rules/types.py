"""The input and the output of a rule: drafts and verdicts.

A draft states *how it was drawn*, because that decides which rules may judge it: a rule that
divides by a draft probability is exact only if the token was really drawn from that law.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

import array_api_compat as compat
import numpy as np

from forerun.base.arrays import Array, to_numpy
from forerun.base.errors import InputError, explain
from forerun.trees.tree import Tree

DraftLength = int | Literal["auto"]
"""The number of guesses in a row: a number, 0 for none, or "auto" for as many as pay."""


class Drawn(Enum):
    """How the tokens of a draft were chosen."""

    POINT = "point"  # deterministic, or by an unknown law: n-gram, argmax, top-k, a user's guess
    SAMPLED = "sampled"  # drawn from the probabilities that come with the draft
    PRUNED = "pruned"  # sampled, then kept or dropped by looking at the tokens
    SHARED = "shared"  # drawn with the target's noise, to agree with it as often as possible


@dataclass(frozen=True)
class Sparse:
    """Draft probabilities of the possible tokens only: ids and probs (B, K, S), ids distinct."""

    ids: Array
    probs: Array


@dataclass(frozen=True)
class Draft:
    """K guessed tokens for each of B sequences, and how they were drawn.

    tokens: (B, K) integers, or (K,) for one sequence, or nested lists whose rows may differ in
    length.
    probs, logits: the draft's law (B, K, V), in one form or the other.
    lengths: (B,), the number of tokens of each row that count; None means all K.
    tree: which token follows which, the same in every row; None means a chain.
    """

    tokens: Any
    drawn: Drawn
    probs: Array | Sparse | None = None
    logits: Array | None = None
    lengths: Any = None
    tree: Tree | None = None

    def __post_init__(self) -> None:
        """Check the shapes here, because a rule that does not read the draft's law would not notice
        errors."""
        if isinstance(self.probs, Sparse):
            _check_rows("draft ids", self.probs.ids, self.tokens)
            _check_rows("draft probs", self.probs.probs, self.tokens)
        else:
            _check_rows("draft probs", self.probs, self.tokens)
        _check_rows("draft logits", self.logits, self.tokens)

    @classmethod
    def point(cls, tokens: Any, *, lengths: Any = None, tree: Tree | None = None) -> Draft:
        """A draft of a deterministic drafter, or of one whose distribution is unknown."""
        tokens, lengths = _padded(tokens, lengths)
        return cls(tokens, Drawn.POINT, lengths=lengths, tree=tree)

    @classmethod
    def sampled(
        cls,
        tokens: Any,
        probs: Array | Sparse | None = None,
        *,
        logits: Array | None = None,
        lengths: Any = None,
        tree: Tree | None = None,
        pruned: bool = False,
    ) -> Draft:
        """A draft of tokens drawn from probs (B, K, V), `Sparse` probs, or softmax(logits).

        Row i is the distribution that token i was really drawn from. In a tree it depends on the
        token's earlier siblings (see `forerun.trees.sibling_laws`); without replacement these have
        probability 0.
        pruned: some tokens were dropped, or the tree was chosen, after the tokens had been seen.
        Such a draft no longer follows probs, so only rules that do not need draft probabilities can
        judge it.
        """
        if (probs is None) == (logits is None):
            received = "neither" if probs is None else "both"
            cure = "Pass one of them; for a draft of unknown distribution use Draft.point(tokens)."
            raise InputError(
                explain("A sampled draft needs its probs or its logits.", received, cure)
            )
        tokens, lengths = _padded(tokens, lengths)
        drawn = Drawn.PRUNED if pruned else Drawn.SAMPLED
        return cls(tokens, drawn, probs, logits, lengths, tree)

    @classmethod
    def shared(cls, tokens: Any, *, lengths: Any = None, tree: Tree | None = None) -> Draft:
        """A draft of tokens sampled from the drafter's distribution with the target's noise."""
        tokens, lengths = _padded(tokens, lengths)
        return cls(tokens, Drawn.SHARED, lengths=lengths, tree=tree)


@dataclass(frozen=True)
class Verdict:
    """The decision of a rule: for each sequence, num_accepted draft tokens and then one extra
    token.

    num_accepted (B,) and extra (B,) are arrays of the caller's library. extra is the correction
    after a refusal, or the bonus after full acceptance; there is always exactly one.
    """

    num_accepted: Array  # (B,)
    extra: Array  # (B,)
    draft_tokens: Array  # (B, K)
    rule: str
    lossless: bool
    seed: int | Sequence[int]  # as given, or as drawn: passing it to `verify` repeats this verdict
    paths: Sequence[Sequence[int]] | None = None  # the accepted nodes of each row's tree, in order

    @property
    def num_emitted(self) -> Array:
        """The number of tokens that the round adds to each sequence, (B,)."""
        return self.num_accepted + 1

    def tokens(self) -> list[list[int]]:
        """The emitted ids of each row: its accepted tokens, then the extra one."""
        drafted, extra = to_numpy(self.draft_tokens), to_numpy(self.extra)
        paths = self.paths or [range(count) for count in to_numpy(self.num_accepted).tolist()]
        return [
            [*(int(drafted[row, node]) for node in path), int(extra[row])]
            for row, path in enumerate(paths)
        ]


def _padded(tokens: Any, lengths: Any) -> tuple[Any, Any]:
    """The tokens and lengths; nested lists with rows of different lengths become a padded array."""
    if compat.is_array_api_obj(tokens) or not isinstance(tokens, Sequence):
        return tokens, lengths
    if len(tokens) == 0:
        wrong = "An empty list says neither how many sequences there are nor how many tokens."
        cure = "For a round without guesses (K = 0) pass shape (B, 0), for one sequence [[]]."
        raise InputError(explain(wrong, tokens, cure))
    if not all(isinstance(row, Sequence | np.ndarray) for row in tokens):
        return _integers(tokens), lengths
    counts = [len(row) for row in tokens]
    if lengths is None and len(set(counts)) > 1:
        lengths = counts
    return _integers([list(row) + [0] * (max(counts) - len(row)) for row in tokens]), lengths


def _check_rows(name: str, rows: Any, tokens: Any) -> None:
    """Raise InputError unless there is one row (V,) for each token.  With one sequence, its axis
    may be missing in `rows`, in `tokens` or in both."""
    if not compat.is_array_api_obj(rows) or not compat.is_array_api_obj(tokens):
        return
    drafted, shape = tuple(tokens.shape), tuple(rows.shape)
    if len(drafted) not in (1, 2) or drafted[-1] == 0:
        return
    drafted = (1, *drafted)[-2:]
    if len(shape) not in (2, 3) or (1, *shape)[-3:-1] != drafted:
        cure = f"One row per draft token is needed: {(*drafted, *shape[-1:])}."
        raise InputError(explain(f"{name} has a wrong shape.", shape, cure))


def _integers(tokens: list[Any] | Sequence[Any]) -> Any:
    """Lists of ids as a NumPy integer array; for an empty list NumPy itself would choose floating
    point."""
    array = np.asarray(tokens)
    return array.astype(np.int64) if array.size == 0 else array
