"""Speed-up and best draft length from tokens per round and costs.

Costs are relative to a target pass over one token, the price of a token in plain decoding.  A
round of draft length K pays K draft steps, one target pass over K + 1 tokens and the overhead of
verifying; K = 0 is plain decoding and pays exactly 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from forerun.base.arrays import HostArray
from forerun.base.errors import InputError, explain
from forerun.theory.arguments import Floats, as_cost, as_count, as_floats, as_rates
from forerun.theory.rounds import survival

TargetCost = float | Sequence[float] | HostArray | Callable[[int], float]
"""The cost of a pass over m tokens: a number for all m >= 2, a list for m = 1, 2, ..., or a
function of m."""


class BestDraftLength(NamedTuple):
    """The best draft length and its speed-up; length 0 means: do not speculate."""

    draft_length: int
    speedup: float


def speedup(
    acceptance: Any,
    draft_length: int,
    draft_cost: float,
    target_cost: TargetCost = 1.0,
    overhead: float = 0.0,
) -> float:
    """The factor by which decoding gets faster: tokens per round over the cost of a round."""
    return float(_speedups(acceptance, draft_length, draft_cost, target_cost, overhead)[-1])


def best_draft_length(
    acceptance: Any,
    draft_cost: float,
    target_cost: TargetCost = 1.0,
    overhead: float = 0.0,
    *,
    max_draft_length: int = 64,
) -> BestDraftLength:
    """The fastest K from 0 to `max_draft_length`, the shorter one on a tie.

    Every K is tried, because measured costs have steps at which hill climbing would stop.  Lists of
    rates and costs limit K too: nothing is extrapolated.
    """
    longest = as_count("max_draft_length", max_draft_length)
    if rates := as_rates("acceptance", acceptance).shape:
        longest = min(longest, rates[-1])
    if costs := () if callable(target_cost) else as_floats("target_cost", target_cost).shape:
        longest = min(longest, max(costs[0] - 1, 0))
    gains = _speedups(acceptance, longest, draft_cost, target_cost, overhead)
    best = int(np.argmax(gains))
    return BestDraftLength(best, float(gains[best]))


def extension_pays(
    acceptance: Any,
    draft_length: int,
    draft_cost: float,
    target_cost: TargetCost = 1.0,
    overhead: float = 0.0,
) -> bool:
    """Whether drafting one more token than `draft_length` is faster.

    It is if the extra tokens per extra cost exceed the tokens per cost so far.  An adaptive drafter
    can call this before each draft step.
    """
    length = as_count("draft_length", draft_length)
    reached = survival(acceptance, length + 1)
    costs = _round_costs(length + 1, draft_cost, target_cost, overhead)
    rate_now = (1.0 + reached[:-1].sum()) / costs[-2]
    return bool(reached[-1] > rate_now * (costs[-1] - costs[-2]))


def relative_pass(target_cost: TargetCost, tokens: int) -> float:
    """The cost of a target pass over `tokens` tokens, in passes over one token."""
    if callable(target_cost):
        cost = target_cost(tokens)
    elif np.ndim(target_cost) == 0:
        cost = 1.0 if tokens == 1 else float(as_floats("target_cost", target_cost))
    else:
        costs = as_floats("target_cost", target_cost)
        if costs.ndim != 1 or tokens > len(costs):
            cure = "Give one cost for each of 1, 2, ..., draft_length + 1 tokens."
            wrong = f"target_cost does not cover a pass over {tokens} tokens."
            raise InputError(explain(wrong, f"shape {costs.shape}", cure))
        cost = costs[tokens - 1]
    cost = as_cost("target_cost", cost)
    if tokens == 1 and abs(cost - 1) > 1e-6:
        cure = "Divide all of them by the cost of one token."
        raise InputError(explain("target_cost must be 1 for one token.", f"{cost:g}", cure))
    return cost


def _round_costs(
    draft_length: int, draft_cost: float, target_cost: TargetCost, overhead: float
) -> Floats:
    """The cost of a round for each K = 0..draft_length, (draft_length + 1,)."""
    step = as_cost("draft_cost", draft_cost, may_be_zero=True)  # an n-gram lookup is free
    extra = as_cost("overhead", overhead, may_be_zero=True)
    lengths = np.arange(as_count("draft_length", draft_length) + 1)
    passes = np.array([relative_pass(target_cost, int(k) + 1) for k in lengths])
    return np.where(lengths > 0, lengths * step + passes + extra, 1.0)


def _speedups(
    acceptance: Any,
    draft_length: int,
    draft_cost: float,
    target_cost: TargetCost,
    overhead: float,
) -> Floats:
    """The speed-up for each K = 0..draft_length, (draft_length + 1,)."""
    costs = _round_costs(draft_length, draft_cost, target_cost, overhead)
    if as_rates("acceptance", acceptance).ndim > 1:
        cure = "Pass one rate, or one conditional rate per position."
        received = f"shape {np.shape(acceptance)}"
        raise InputError(explain("acceptance describes many drafters at once.", received, cure))
    reached = survival(acceptance, draft_length)
    return (1.0 + np.concatenate([[0.0], np.cumsum(reached)])) / costs
