"""Processors that remember: what they do depends on the calls before."""

from __future__ import annotations

from typing import Any


class CallCounter:
    """Adds to one token's score a number that grows with every call, whatever the text."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        self.calls += 1
        changed = scores.clone()
        changed[:, self.calls % scores.shape[1]] += 3.0
        return changed


class Toggle:
    """Forbids the even or the odd tokens, and changes sides when the text shows a multiple of 3."""

    def __init__(self) -> None:
        self.parity = 0

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        if int(input_ids[0, -1]) % 3 == 0:
            self.parity = 1 - self.parity
        scores[:, self.parity :: 2] = -float("inf")  # in place, as many processors do
        return scores
