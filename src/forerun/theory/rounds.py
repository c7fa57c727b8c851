"""Tokens per round from the acceptance rate at each position.

A chain survives to position k if its first k drafts are all accepted.  The expected tokens of a
round are 1 (the extra one) plus the chances of survival, so rates *given that a position was
reached* matter: a rate pooled over positions hides that easy rounds reach far and hard rounds stop
early.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from forerun.base.errors import InputError, explain
from forerun.theory.arguments import Floats, as_count, as_rates


def conditional_rates(acceptance: Any, draft_length: int | None = None) -> Floats:
    """Rates (..., K) by position: a single number is repeated K times, a sequence is cut to its
    first K."""
    rates = as_rates("acceptance", acceptance)
    if rates.ndim == 0:
        if draft_length is None:
            cure = "Say how many tokens are drafted, or pass one rate per position."
            raise InputError(explain("One rate needs a draft_length.", "None", cure))
        return np.full(as_count("draft_length", draft_length), rates)
    num_rates = rates.shape[-1]
    length = num_rates if draft_length is None else as_count("draft_length", draft_length)
    if length > num_rates:
        cure = f"Use a draft_length of at most {num_rates}, or give a rate for every position."
        received = f"draft_length={length} and {num_rates} rates"
        raise InputError(explain("Rates are missing for the last positions.", received, cure))
    return rates[..., :length]


def survival(acceptance: Any, draft_length: int | None = None) -> Floats:
    """The chances P(num_accepted >= k) for k = 1..K, (..., K)."""
    return np.cumprod(conditional_rates(acceptance, draft_length), axis=-1)


def tokens_per_round(acceptance: Any, draft_length: int | None = None) -> Floats:
    """The expected number of emitted tokens per round.

    acceptance: one rate, or conditional rates (..., K) by position.  With one rate a the result is
    (1 - a^(K+1)) / (1 - a), and K + 1 for a = 1.
    """
    return 1.0 + survival(acceptance, draft_length).sum(axis=-1)


def accepted_length_law(acceptance: Any, draft_length: int | None = None) -> Floats:
    """The chances P(num_accepted = k) for k = 0..K, (..., K + 1)."""
    rates = conditional_rates(acceptance, draft_length)
    edge = np.ones((*rates.shape[:-1], 1))
    reached = np.concatenate([edge, np.cumprod(rates, axis=-1)], axis=-1)
    stops = np.concatenate([1.0 - rates, edge], axis=-1)
    return reached * stops


def difficulty_rates(mean: float, spread: float, draft_length: int) -> Floats:
    """Conditional rates (K,) if the drafts of a round are easy or hard *together*.

    Each round draws its own rate from a Beta law with this mean and standard deviation.  Every
    accepted token is evidence of an easy round, so the rates rise with the position, and a
    round yields more than the constant rate `mean` would.
    """
    mean, spread = float(as_rates("mean", mean)), float(as_rates("spread", spread))
    position = np.arange(as_count("draft_length", draft_length))
    if spread == 0:
        return np.full(len(position), mean)
    easy, hard = beta_parameters(mean, spread)
    return (easy + position) / (easy + hard + position)


def beta_parameters(mean: float, spread: float) -> tuple[float, float]:
    """The two parameters of the Beta law with this mean and standard deviation."""
    ceiling = mean * (1 - mean)  # the largest variance of a rate with this mean
    if not 0 < spread**2 < ceiling:
        cure = f"At mean {mean:g} the spread must be below {ceiling**0.5:.3g}."
        wrong = "No Beta distribution has this mean and spread."
        raise InputError(explain(wrong, f"{spread:g}", cure))
    concentration = ceiling / spread**2 - 1
    return mean * concentration, (1 - mean) * concentration


def ratio_survival(target_at: Any, draft_at: Any) -> Floats:
    """The chances (..., K) that the `ratio` rule accepts at least k tokens of a given draft.

    target_at, draft_at: (..., K), p(x_k) and q(x_k) of the drafted tokens x_1..x_K.
    """
    p, q = _on_path(target_at, draft_at)
    return np.cumprod(np.minimum(p, q) / q, axis=-1)


def block_survival(target_at: Any, draft_at: Any) -> Floats:
    """The chances (..., K) that the `block` rule accepts at least k tokens of a given draft.

    They are pi_k = min(pi_(k-1) p(x_k) / q(x_k), 1).  The cap applies to the product instead of to
    each factor, so a token with p > q can make up for an earlier one with p < q.  The result is
    nowhere below `ratio_survival`.  target_at, draft_at: (..., K), as there.
    """
    p, q = _on_path(target_at, draft_at)
    pi = np.empty_like(p)
    alive: Any = 1.0
    for k in range(p.shape[-1]):
        alive = np.minimum(alive * p[..., k], q[..., k]) / q[..., k]
        pi[..., k] = alive
    return pi


def _on_path(target_at: Any, draft_at: Any) -> tuple[Floats, Floats]:
    """Checked probabilities of drafted tokens, of equal shape; q must be positive."""
    p, q = as_rates("target_at", target_at), as_rates("draft_at", draft_at)
    if p.shape != q.shape or p.ndim == 0:
        cure = "Both are (..., K): one probability per drafted token."
        raise InputError(explain("The path does not line up.", f"{p.shape} and {q.shape}", cure))
    if np.any(q == 0):
        cure = "A token that was drawn has q > 0: pass the distribution it was really drawn from."
        raise InputError(explain("draft_at has zeros.", f"{int((q == 0).sum())} of them", cure))
    return p, q
