"""Sampling options of a request, as a plain server applies them to logits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from forerun.base.arrays import HostArray

KNOWN = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "logit_bias",
    "presence_penalty",
    "frequency_penalty",
)


OF_DRAFTS = ("temperature", "top_p", "top_k", "min_p")
"""Options that a drafter applies to its own law too."""


def law_of(logits: HostArray, said: Sequence[int], options: Mapping[str, Any]) -> HostArray:
    """The law (V,) of the next token; said: what has been generated so far."""
    logits = logits.copy()
    for token, bias in (options.get("logit_bias") or {}).items():
        logits[int(token)] += bias
    if options.get("presence_penalty") or options.get("frequency_penalty"):
        for token, count in Counter(said).items():
            logits[token] -= options.get("presence_penalty") or 0.0
            logits[token] -= count * (options.get("frequency_penalty") or 0.0)
    temperature = options.get("temperature", 1.0)
    if temperature == 0:
        return np.asarray(np.eye(len(logits))[int(np.argmax(logits))])
    weights = np.exp((logits - logits.max()) / temperature)
    law = weights / weights.sum()
    if top_k := options.get("top_k"):
        order = np.argsort(-law, kind="stable")
        law[order[top_k:]] = 0.0
        law /= law.sum()
    if min_p := options.get("min_p"):
        law = np.where(law >= min_p * law.max(), law, 0.0)
    if (top_p := options.get("top_p", 1.0)) < 1:
        order = np.argsort(-law, kind="stable")
        before = np.cumsum(law[order]) - law[order]
        law[order[before >= top_p]] = 0.0
    return np.asarray(law / law.sum())
