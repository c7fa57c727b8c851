"""Is it still the same model?  The first law is asked for again at the end."""

from __future__ import annotations

import math

from forerun.audit.bins import Bins
from forerun.audit.budget import SpentError
from forerun.audit.check_logprobs import GROSS
from forerun.audit.endpoint import Endpoint
from forerun.audit.findings import Finding, Status
from forerun.audit.prompts import Prompt

LIKELY = 0.05


def check_unchanged(endpoint: Endpoint, prompt: Prompt) -> Finding:
    """Compares the law after a prompt at the end with that at the beginning."""
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
