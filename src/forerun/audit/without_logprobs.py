"""Tests the law of an endpoint that reports no log-probabilities: compares texts generated at once
with texts generated token by token.

A chain of one-token requests cannot be speculated. One text of each kind makes a pair. If both have
the same law, any score of the two differs by 0 on average, and a bet on the difference is fair. The
scores say how closely a text follows what an n-gram would copy, how often it repeats its last word,
and how many different words it has. Compared with the test by log-probabilities, this loses most of
the power (a pair is one observation and not sixteen), and any bias that does not change these
scores.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import count

import numpy as np

from forerun.audit.budget import SpentError
from forerun.audit.endpoint import Endpoint
from forerun.audit.evidence import needed
from forerun.audit.features import copied
from forerun.audit.findings import Finding, Status
from forerun.audit.law_finding import LEVEL, interval
from forerun.audit.prompts import Prompt
from forerun.audit.questions import Question
from forerun.base.arrays import HostArray

LENGTH = 8
"""The number of tokens in each text of a pair."""
STAKES = (-0.6, -0.3, -0.1, 0.1, 0.3, 0.6)
"""The fractions of the wealth that are bet on a difference of scores; negative ones bet on the
opposite sign."""
SCORES = ("copies", "says again", "different words")
"""The scores by which the two texts of a pair are compared."""


def check_law_by_pairs(endpoint: Endpoint, prompts: Sequence[Prompt]) -> Finding:
    """Compare texts with chains of one-token requests, in pairs.

    A difference of scores lies in [-1, 1] and has mean 0 if both kinds have the same law, so with
    stakes below 1 the wealth is a martingale.
    """
    wealth = np.zeros((len(SCORES), len(STAKES)))  # logarithms
    differences: list[HostArray] = []
    try:
        for number in count():
            prompt = prompts[number % len(prompts)]
            whole = endpoint.ask(
                f"pair/{number}/whole",
                Question(prompt.text, LENGTH, options=endpoint.plain, wants_logprobs=False),
            ).text
            chained = _chained(endpoint, prompt, f"pair/{number}/chained")
            gap = scores(prompt, whole) - scores(prompt, chained)  # in [-1, 1]
            differences.append(gap)
            wealth += np.log1p(np.outer(gap, STAKES))
            if _mean(wealth) >= needed(LEVEL):
                break
    except SpentError:
        pass
    if not differences:
        return Finding("law", Status.UNKNOWN, "The budget is too small for a pair of texts.")
    logarithm = _mean(wealth)
    is_wrong = logarithm >= needed(LEVEL)
    mean = np.mean(differences, axis=0)
    words = (
        f"Without log-probabilities only {len(differences)} pairs of texts could be compared; "
        f"e-value {math.exp(min(logarithm, 600)):.3g}, needed {1 / LEVEL:.0f}."
    )
    low, high = interval([float(gap[0]) / 2 for gap in differences], 0.01)
    is_blind = high - low >= 0.5
    return Finding(
        "law",
        Status.FAILED if is_wrong else Status.UNCLEAR if is_blind else Status.NOTED,
        words,
        "more copying in text of several tokens",
        float(mean[0]),
        (2 * low, 2 * high),
        "nothing: raise --budget"
        if is_blind
        else f"a change of about {2 * (high - low):.2f} in the share of copied words, and no less",
        {"log_e_value": logarithm, "pairs": len(differences), "differences": mean.tolist()},
    )


def scores(prompt: Prompt, text: str) -> HostArray:
    """The scores of a text, each in [0, 1], (len(SCORES),)."""
    words = [f" {word}" for word in text.split()][:LENGTH]
    known = [*prompt.pieces, *words]
    start = len(prompt.pieces)
    if not words:
        return np.zeros(len(SCORES))
    copies = sum(copied(known, place) == known[place] for place in range(start, len(known)))
    again = sum(known[place] == known[place - 1] for place in range(start, len(known)))
    return np.array([copies / LENGTH, again / LENGTH, len(set(words)) / LENGTH])


def _chained(endpoint: Endpoint, prompt: Prompt, name: str) -> str:
    """A text whose tokens are requested one at a time."""
    parts: list[str] = []
    for place in range(LENGTH):
        question = Question(
            prompt.text, 1, tuple(parts), options=endpoint.plain, wants_logprobs=False
        )
        part = endpoint.ask(f"{name}/{place}", question).text
        if not part:
            break
        parts.append(part)
    return "".join(parts)


def _mean(wealth: HostArray) -> float:
    """The logarithm of the mean wealth of all experts, whose log-wealths are given."""
    top = float(wealth.max())
    return top + math.log(float(np.exp(wealth - top).mean()))
