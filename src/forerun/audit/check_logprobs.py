"""Compares log-probabilities: of texts with those of one-token requests, and of the beginning of
the audit with its end."""

from __future__ import annotations

import math
from collections.abc import Sequence

from forerun.audit.bins import LIKELY_ZERO, Bins
from forerun.audit.budget import SpentError
from forerun.audit.check_law import Heard
from forerun.audit.endpoint import Endpoint
from forerun.audit.findings import Finding, Status
from forerun.audit.prompts import Prompt

TOLERANCE = 0.1
"""The most nats that rounding may move a log-probability by; bfloat16 has steps of 1/16 near 16."""
GROSS = 0.5
"""A difference, in nats, that rounding cannot cause."""
LISTED = 1e-3
"""Tokens less likely than this are not compared, because their log-probabilities have the fewest
bits."""
LIKELY = 0.05
"""At the end of an audit, only tokens at least this likely are compared."""


def check_logprobs(heard: Sequence[Heard]) -> Finding:
    """Compare the log-probabilities of tokens in texts with those of one-token requests."""
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
    """A confidence interval for a share: `hits` of `count` (Clopper and Pearson)."""

    def tail(chance: float, least: int) -> float:
        """The probability of at least `least` hits out of `count`."""
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
        """The share at which `least` or more hits have the probability `goal`."""
        low, high = 0.0, 1.0
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if tail(middle, least) < goal else (low, middle)
        return (low + high) / 2

    lower = 0.0 if hits == 0 else solve(hits, level / 2)
    upper = 1.0 if hits == count else solve(hits + 1, 1 - level / 2)
    return lower, upper


def check_unchanged(endpoint: Endpoint, prompt: Prompt) -> Finding:
    """Check that the law after a prompt is the same at the end of the audit as at its beginning."""
    name = "same model"
    try:
        first = endpoint.law(prompt.text, ())
        told = endpoint.ask("again/last", endpoint.one_token(prompt.text)).choices[0].tokens
    except SpentError:
        return Finding(name, Status.UNKNOWN, "The budget did not last for a second look.")
    if first is None or not told or not told[0].top:
        return Finding(name, Status.UNKNOWN, "Needs log-probabilities.")
    last = Bins.of(told[0].top)
    gaps = [
        abs(math.log(max(last.chance(key), 1e-9) / chance))
        for key, chance in zip(first.keys[:-1], first.chances.tolist(), strict=False)
        if chance > LIKELY
    ]
    worst = max(gaps, default=0.0)
    words = f"The distribution after the first prompt moved by {worst:.2g} nats during the audit."
    status = Status.PASSED
    if worst > GROSS:
        status = Status.FAILED
        words += " The model changed in between, so the other findings mean little."
    return Finding(name, status, words, "change of a log-probability", worst, None,
                   f"a change of {GROSS} nats in a likely token")  # fmt: skip
