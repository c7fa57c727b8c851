"""How much of a long prompt may share a round with requests that are being answered.

A prompt fed whole makes everyone else wait for it.  Fed in parts it makes every round a little
longer.  What a part adds is measured as a fixed cost and a cost per token, and a part is as long as
keeps a round within `SLOWER` times a usual one.  Both costs grow with the context, so they are
estimated from the latest few parts.  Where the fixed cost alone is too much, as for models that
read each row in a pass of its own, a part may add as much again by its tokens.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median

SLOWER = 1.6  # times a usual round that a round with part of a prompt may take
FIRST = 2  # tokens of the first part, before anything was measured
GROWTH = 1.5  # times the last part that the next one may be at most
UNMEASURED = 32  # tokens of a part at most while no usual round has been timed
NUM_USUAL = 15  # latest rounds without prompts, of which the median counts
NUM_PARTS = 8  # latest parts, from which their cost is estimated


@dataclass
class Pacing:
    """Learns what a part of a prompt adds to a round, and says how long the next one may be."""

    usual: deque[float] = field(default_factory=lambda: deque(maxlen=NUM_USUAL))
    parts: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=NUM_PARTS))
    """Tokens of the latest parts, and the seconds of their rounds."""

    def num_tokens(self) -> int:
        """Prompt tokens for the next round, 1 at least."""
        last = self.parts[-1][0] if self.parts else 0
        most = max(FIRST, int(GROWTH * last))
        if not self.parts or not self.usual:
            return min(most, UNMEASURED)
        allowed = (SLOWER - 1) * median(self.usual)
        fixed, slope = self._costs()
        spendable = allowed - fixed if fixed < allowed else fixed
        return max(1, int(min(most, spendable / max(slope, 1e-9))))

    def learn(self, seconds: float, num_read: int) -> None:
        """A round took so long, in which so many prompt tokens were read beside other rows."""
        if num_read:
            self.parts.append((num_read, seconds))
        else:
            self.usual.append(seconds)

    def _costs(self) -> tuple[float, float]:
        """Seconds that a part adds whatever its length, and seconds per token: a line through the
        medians of the shorter and the longer half; through zero where all are alike."""
        usual = median(self.usual)
        parts = sorted((size, max(0.0, seconds - usual)) for size, seconds in self.parts)
        half = len(parts) // 2
        shorter, longer = parts[: half or 1], parts[half:]
        low, high = (median(size for size, _ in side) for side in (shorter, longer))
        less, more = (median(cost for _, cost in side) for side in (shorter, longer))
        if high < 1.5 * low:
            return 0.0, more / high
        slope = max(0.0, (more - less) / (high - low))
        return max(0.0, less - slope * low), slope
