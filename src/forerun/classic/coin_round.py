"""One round with the caller's coins: Onlearn's "Draft-Target Speculative Decoding Simulation".

The task is a round without randomness.  The caller gives one coin per draft token, and where a
sampler would draw (the correction from the residual, the bonus from the last row) the likeliest
token is taken.  So a round can be checked by hand, but it is *lossy*: the argmax of a residual is
not a sample of it (`certify` lists it as "argmax correction").

This is the `ratio` rule with other noise: coins that are given, and draws that are argmax.
A coin accepts when it is below min(1, p / q), strictly, so that p = 0 is never accepted.  A draft
token with q = 0 was not drawn from q, and is refused with an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from forerun.base.arrays import Array, HostArray
from forerun.base.errors import InputError, explain
from forerun.classic.rows import as_table
from forerun.rules import Ratio
from forerun.rules.types import Draft
from forerun.verification import prepare


@dataclass(frozen=True)
class GivenNoise:
    """Noise with coins that were tossed before, (1, K), and draws that take the likeliest token."""

    tossed: Array

    def coins(self, slots: list[int], chances: Array) -> Array:
        return self.tossed[:, slots] < chances

    def draw(self, weights: Array) -> Array:
        return np.argmax(weights, axis=1)

    def race(self, weights: Array, rows: Array, slots: Array) -> Array:
        return np.argmax(weights, axis=1)


def speculative_decode(
    draft_probs: list[HostArray],
    target_probs: list[HostArray],
    draft_tokens: list[int],
    random_coins: list[float],
) -> dict[str, Any]:
    """Run one round; returns a dictionary with `accepted_tokens` (the extra one included),
    `num_generated` and `acceptance_rate`.

    draft_probs: K rows (V,).  target_probs: K + 1 rows.  draft_tokens: K ids.  random_coins: K
    numbers in [0, 1).  The rate is accepted / K to four decimals, 0.0 for K = 0.
    """
    target = as_table("target_probs", target_probs)
    draft = as_table("draft_probs", draft_probs, target.shape[1] or None)
    tossed = _coins(random_coins, len(draft_tokens))
    rule = Ratio()
    guess = Draft.sampled([list(draft_tokens)], draft[None])
    trial = prepare(guess, target, None, 1.0, rule)
    num_accepted, extra = (int(part[0]) for part in rule.decide(trial, GivenNoise(tossed)))
    emitted = [*(int(token) for token in draft_tokens[:num_accepted]), extra]
    return {
        "accepted_tokens": emitted,
        "num_generated": len(emitted),
        "acceptance_rate": round(num_accepted / max(1, len(draft_tokens)), 4),
    }


def _coins(given: list[float], num_drafted: int) -> Array:
    """The coins as an array (1, K); InputError unless there is one number from [0, 1] per draft
    token.  1 is allowed, although it can only refuse."""
    tossed = np.array(given, dtype=np.float64)
    if tossed.shape != (num_drafted,) or not np.all((tossed >= 0) & (tossed <= 1)):
        cure = f"Pass {num_drafted} numbers from [0, 1), one per draft token."
        raise InputError(explain("random_coins do not fit the draft.", given, cure))
    return tossed[None, :]
