"""How much of a long prompt may share a round with requests that are being answered.

A prompt fed whole makes everyone else wait for it.  Fed in parts it makes every round a little
longer: by at most `SLOWER` times what rounds usually take, which is measured.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median

SLOWER = 1.6  # times a usual round that a round with part of a prompt may take
FIRST = 4  # tokens of the first part, before anything was measured
GROWTH = 2.0  # times the last part that the next one may be at most
SMOOTHING = 0.3  # weight of the newest measurement
NUM_USUAL = 15  # latest rounds without prompts, of which the median counts


@dataclass
class Pacing:
    """Learns what a prompt token costs in a round, and says how many fit."""

    usual: deque[float] = field(default_factory=lambda: deque(maxlen=NUM_USUAL))
    per_token: float | None = None  # seconds that a prompt token adds to a round
    last: int = 0  # tokens of the last part

    def num_tokens(self) -> int:
        """Prompt tokens for the next round, 1 at least."""
        if self.per_token is None or not self.usual:
            return FIRST
        fitting = (SLOWER - 1) * median(self.usual) / max(self.per_token, 1e-9)
        return max(1, int(min(fitting, GROWTH * max(self.last, FIRST))))

    def learn(self, seconds: float, num_read: int) -> None:
        """A round took so long, in which so many prompt tokens were read beside other rows."""
        if num_read == 0:
            self.usual.append(seconds)
            return
        self.last = num_read
        if self.usual:
            cost = max(0.0, seconds - median(self.usual)) / num_read
            before = cost if self.per_token is None else self.per_token
            self.per_token = before + SMOOTHING * (cost - before)
