"""Log-probabilities that come with speculated text, against those of one-token requests."""

from __future__ import annotations

import math
from collections.abc import Sequence

from forerun.audit.bins import LIKELY_ZERO
from forerun.audit.check_law import Heard
from forerun.audit.findings import Finding, Status

TOLERANCE = 0.1
"""Nats by which rounding may move a log-probability: bfloat16 has steps of 1/16 near 16."""
GROSS = 0.5
LISTED = 1e-3


def check_logprobs(heard: Sequence[Heard]) -> Finding:
    pairs = [
        (item.token.logprob, math.log(chance))
        for item in heard
        if item.token.text in item.law.keys
        and (chance := item.law.chance(item.token.text)) > LISTED
    ]
    if not pairs:
        words = "No token of a text has a log-probability to compare."
        return Finding("logprobs", Status.UNKNOWN, words)
    gaps = [abs(told - plain) for told, plain in pairs]
    zeros = sum(told > -LIKELY_ZERO and plain < -TOLERANCE for told, plain in pairs)
    off = sum(gap > TOLERANCE for gap in gaps)
    gross = sum(gap > GROSS for gap in gaps)
    low, high = binomial_interval(off, len(pairs))
    words = f"{off} of {len(pairs)} log-probabilities are off by more than {TOLERANCE} nats"
    words += f", {zeros} of them are 0.0; the worst by {max(gaps):.2g}."
    is_wrong = zeros > 0 or gross > 0 or off > 0.02 * len(pairs)
    status = Status.FAILED if is_wrong else Status.NOTED if off else Status.PASSED
    catch = f"wrong values at {1 - 0.05 ** (1 / len(pairs)):.1%} of tokens, with a chance of 95%"
    return Finding(
        "logprobs",
        status,
        words,
        f"share of log-probabilities off by more than {TOLERANCE} nats",
        off / len(pairs),
        (low, high),
        catch,
        {"compared": len(pairs), "off": off, "zeros": zeros, "worst": max(gaps)},
    )


def binomial_interval(hits: int, count: int, level: float = 0.01) -> tuple[float, float]:
    """Bounds on a share by the tails of the binomial law (Clopper and Pearson)."""

    def tail(chance: float, least: int) -> float:
        """The chance of at least so many."""
        if chance <= 0:
            return 1.0 if least <= 0 else 0.0
        if chance >= 1:
            return 1.0
        logs = math.log(chance), math.log1p(-chance)
        total = 0.0
        for number in range(least, count + 1):
            ways = (
                math.lgamma(count + 1) - math.lgamma(number + 1) - math.lgamma(count - number + 1)
            )
            total += math.exp(ways + number * logs[0] + (count - number) * logs[1])
        return min(1.0, total)

    def solve(least: int, goal: float) -> float:
        low, high = 0.0, 1.0
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if tail(middle, least) < goal else (low, middle)
        return (low + high) / 2

    lower = 0.0 if hits == 0 else solve(hits, level / 2)
    upper = 1.0 if hits == count else solve(hits + 1, 1 - level / 2)
    return lower, upper
