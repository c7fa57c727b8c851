"""Turns costs and traces into a forecast: tokens per round, seconds per token, speed-up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from forerun.base.arrays import HostArray
from forerun.base.errors import InputError, explain
from forerun.measure.figures import ratio_interval
from forerun.measure.probe import DrafterProbe
from forerun.measure.records import Interval
from forerun.measure.round_costs import TargetCosts
from forerun.measure.traces import Trace


@dataclass(frozen=True)
class Forecast:
    """The predicted figures of one setting; docs/measuring.md defines them."""

    drafter: str
    rule: str
    draft_length: int
    tree: int | None  # nodes; None: a chain
    batch: int
    temperature: float
    tokens_per_round: Interval
    seconds_per_token: float
    speedup: Interval


def forecast(
    probe: DrafterProbe,
    *,
    draft_length: int,
    tree: int | None = None,
    batch: int = 1,
    temperature: float = 0.0,
    rule: str = "match",
) -> Forecast:
    """Predict one setting from a probe; draft length 0 is plain decoding.

    Every text is the answer to one prompt.  The expected number of rounds is computed for each
    text, and a round is charged for the tokens it would draft at the position where it starts.
    All prompts have the same weight, as in a sweep.  A tree is as deep as the longest probed draft.
    """
    _check(probe, draft_length, tree, batch, temperature, rule)
    traces = probe.traces[temperature, rule] if tree is None else probe.trees[temperature, tree]
    costs, size = probe.subject.costs, tree or draft_length
    verify, commit = costs.verify[batch].mean, costs.commit[batch].mean
    plain = costs.pass_seconds(batch, 1) + commit + verify * batch
    tokens = np.array([len(trace.survival) for trace in traces], dtype=float)
    rounds = np.array([trace.rounds(draft_length) for trace in traces])
    drafted = [_drafted_law(trace, draft_length, size) for trace in traces]
    if batch > 1:  # a pass mixes requests, so all texts share one law of draft sizes
        drafted = [np.sum(drafted, axis=0)] * len(traces)
    drafting = (
        probe.costs.draft_seconds(batch, draft_length)
        if tree is None
        else probe.costs.tree_seconds(batch, tree)
    )
    passes = np.array([_pass_seconds(costs, batch, law / law.sum()) for law in drafted])
    per_round = drafting + passes + commit
    pace = rounds * per_round / tokens + verify * batch
    speedup = ratio_interval(np.full(len(pace), plain), pace)
    doubt = math.hypot(costs.uncertainty(batch, 1), costs.uncertainty(batch, size + 1))
    return Forecast(
        drafter=probe.drafter,
        rule=rule,
        draft_length=draft_length,
        tree=tree,
        batch=batch,
        temperature=temperature,
        tokens_per_round=ratio_interval(tokens, rounds),
        seconds_per_token=float(pace.mean()),
        speedup=_widened(speedup, doubt) if draft_length else speedup,
    )


def _drafted_law(trace: Trace, draft_length: int, most: int) -> HostArray:
    """Expected rounds that draft 0, 1, ..., `most` tokens, (most + 1,); not normalised."""
    num_tokens = len(trace.survival)
    drafted = np.minimum(trace.drafted, most)
    if most == draft_length:  # a chain drafts at most the rest of the text
        drafted = np.minimum(drafted, num_tokens - np.arange(num_tokens) - 1)
    return np.bincount(drafted, weights=trace.visits(draft_length), minlength=most + 1)


def _pass_seconds(costs: TargetCosts, batch: int, law: HostArray) -> float:
    """Mean seconds of a pass if each of `batch` requests draws its draft size from `law`."""
    if batch == 1:
        return float(sum(p * costs.pass_seconds(1, n + 1) for n, p in enumerate(law) if p))
    sizes = np.arange(len(law))
    longest = np.diff(np.cumsum(law) ** batch, prepend=0.0)  # law of the longest draft in the batch
    return costs.ragged_seconds(batch, 1 + float(law @ sizes), 1 + float(longest @ sizes))


def _widened(interval: Interval, doubt: float) -> Interval:
    """Widen the interval over texts by `doubt`, the independent relative error of the costs."""

    def end(value: float) -> float:
        share = math.hypot(value / interval.mean - 1, doubt)
        return interval.mean * (1 + math.copysign(share, value - interval.mean))

    low, high = end(min(interval.low, interval.mean * (1 - 1e-12))), end(interval.high)
    return Interval(interval.mean, max(low, 0.0), max(high, interval.mean))


def _check(
    probe: DrafterProbe,
    draft_length: int,
    tree: int | None,
    batch: int,
    temperature: float,
    rule: str,
) -> None:
    """Refuse a setting that the probe has not measured."""
    deepest = probe.subject.max_draft_length
    known: dict[str, tuple[object, Sequence[object]]] = {
        "draft_length": (draft_length, range(deepest + 1) if tree is None else (deepest,)),
        "tree": (tree, (None, *probe.subject.trees)),
        "batch": (batch, probe.subject.batches),
        "temperature": (temperature, tuple(probe.subject.texts)),
        "rule": (rule, probe.rules(temperature) if tree is None else ("match",)),
    }
    for name, (value, allowed) in known.items():
        if value not in allowed:
            cure = f"Probed were {list(allowed)}; probe again for others."
            wrong = f"The probe says nothing about this {name.replace('_', ' ')}."
            raise InputError(explain(wrong, repr(value), cure))
