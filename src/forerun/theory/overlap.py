"""The chance that one drafted token is accepted, from the two laws at its position.

The best chance any rule can reach with one draft is 1 - TV(p, q) = sum min(p, q), the overlap of
the two laws.  `ratio` reaches it, but needs q and fresh coins.  `match` needs neither: target and
drafter race under the same noise, and acceptance is slightly lower.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from forerun.base.errors import InputError, explain
from forerun.theory.arguments import Floats, as_count, as_law, as_laws


def acceptance(target_probs: Any, draft_probs: Any) -> Floats:
    """The overlap sum min(p, q) of rows (..., V): the acceptance of `ratio`, and the maximum of
    every rule."""
    p, q = as_laws(target_probs, draft_probs)
    return np.minimum(np.minimum(p, q).sum(axis=-1), 1.0)


def total_variation(target_probs: Any, draft_probs: Any) -> Floats:
    """The total variation distance sum (p - q)+ of rows (..., V), which is 1 - `acceptance`."""
    p, q = as_laws(target_probs, draft_probs)
    return np.minimum(np.maximum(p - q, 0.0).sum(axis=-1), 1.0)


def match_acceptance(target_probs: Any, draft_probs: Any) -> Floats:
    """The chance sum p q that two independent draws agree: `match` without shared noise."""
    p, q = as_laws(target_probs, draft_probs)
    return (p * q).sum(axis=-1)


def point_mass_acceptance(target_probs: Any, tokens: Any) -> Floats:
    """The chances p(x) that the target draws the guessed tokens (...): n-gram and argmax drafts."""
    p = as_law("target_probs", target_probs)
    ids = np.asarray(tokens)
    if ids.dtype.kind not in "iu" or ids.size == 0 or ids.min() < 0 or ids.max() >= p.shape[-1]:
        cure = f"Token ids are integers from 0 to {p.shape[-1] - 1}, one per row."
        raise InputError(explain("tokens do not fit the vocabulary.", repr(tokens), cure))
    if ids.shape != p.shape[:-1]:
        shapes = f"tokens {ids.shape} for rows {p.shape}"
        raise InputError(explain("tokens and rows do not pair up.", shapes, "One token per row."))
    return np.take_along_axis(p, ids[..., None], axis=-1)[..., 0]


def gumbel_acceptance(target_probs: Any, draft_probs: Any) -> Floats:
    """The chance that target and drafter choose one token under the same noise (`match`).

    Token j wins both races if and only if every other i arrives later in both, which happens with
    probability 1 / sum_i max(p_i / p_j, q_i / q_j).  The maximum is p_i / p_j exactly when i has
    the larger ratio p / q, so after one sort each sum is a prefix of p plus a suffix of q:
    O(V log V) instead of O(V^2).
    """
    p, q = _sorted_by_ratio(*as_laws(target_probs, draft_probs))
    p, q = p[..., ::-1], q[..., ::-1]  # tokens with the largest p / q first
    p_before = np.cumsum(p, axis=-1) - p
    q_from = np.cumsum(q[..., ::-1], axis=-1)[..., ::-1]
    can_win = (p > 0) & (q > 0)
    p_j, q_j = np.where(can_win, p, 1.0), np.where(can_win, q, 1.0)
    with np.errstate(over="ignore"):  # a vanishing p_j or q_j wins with probability 1 / inf
        wins = 1.0 / (p_before / p_j + q_from / q_j)
    return np.minimum(np.where(can_win, wins, 0.0).sum(axis=-1), 1.0)


def gumbel_bounds(target_probs: Any, draft_probs: Any) -> tuple[Floats, Floats]:
    """The bounds (1 - TV) / (1 + TV) and 1 - TV of `gumbel_acceptance`, by total variation."""
    overlap = acceptance(target_probs, draft_probs)
    return overlap / (2.0 - overlap), overlap


def transport_bound(target_probs: Any, draft_probs: Any, num_drafts: int) -> Floats:
    """The highest acceptance of any lossless rule with `num_drafts` independent drafts of a token.

    By max-flow min-cut it is the minimum over token sets H of p(H) + 1 - q(H)^n: the target's mass
    inside H, plus the chance that some draft lies outside.  This is concave in (p(H), q(H)), so its
    minimum is at a corner, and the corners are the prefixes of the vocabulary sorted by p / q.
    """
    n = as_count("num_drafts", num_drafts, minimum=1)
    p, q = _sorted_by_ratio(*as_laws(target_probs, draft_probs))
    cuts = np.cumsum(p, axis=-1) + 1.0 - np.cumsum(q, axis=-1) ** n
    return np.minimum(cuts.min(axis=-1), 1.0)  # 1.0 is the empty set


def _sorted_by_ratio(p: Floats, q: Floats) -> tuple[Floats, Floats]:
    """Both laws (..., V) ordered by p / q, smallest first; logarithms keep tiny ratios apart."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.log(p) - np.log(q)  # 0 / 0 is NaN: sorted last, where it adds nothing
    order = np.argsort(ratio, axis=-1)
    return np.take_along_axis(p, order, axis=-1), np.take_along_axis(q, order, axis=-1)
