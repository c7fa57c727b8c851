"""How much of a long prompt may share a round with requests that are being answered.

A prompt fed whole makes everyone else wait for it.  Fed in parts it makes every round a little
longer.  A part is as long as keeps a round within `SLOWER` times a usual one, by what the latest
parts have added to theirs, which grows with the context.  A usual round has no part; how long it
takes changes as answers grow, come and go, so now and then a round is left without one.

Some models read each row in a pass of its own, and short parts take as long as longer ones.  Where
that fixed cost alone is too much, a part may add as much again by its tokens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

SLOWER = 1.45  # times a usual round that a round with part of a prompt may take
FIRST = 2  # tokens of the first part, before anything was measured
GROWTH = 1.5  # times the last part that the next one may be at most
UNMEASURED = 32  # tokens of a part at most while no usual round has been timed
NUM_USUAL = 5  # latest rounds without prompts, of which the median counts
CAUTION = 2 / 3  # of the latest parts were cheaper per token than the next one is taken to be
PROBE = 16  # rounds with parts, after which one goes without
NUM_PARTS = 8  # latest parts, from which their cost is estimated


@dataclass
class Pacing:
    """Learns what a part of a prompt adds to a round, and says how long the next one may be."""

    usual: deque[float] = field(default_factory=lambda: deque(maxlen=NUM_USUAL))
    parts: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=NUM_PARTS))
    """Tokens of the latest parts, and the seconds of their rounds."""
    num_since_usual: int = 0

    def num_tokens(self) -> int:
        """Prompt tokens for the next round; 0 if it shall be timed without."""
        if self.num_since_usual >= PROBE:
            return 0
        last = self.parts[-1][0] if self.parts else 0
        most = max(FIRST, int(GROWTH * last))
        if not self.parts or not self.usual:
            return min(most, UNMEASURED)
        usual = median(self.usual)
        parts = [(size, max(0.0, seconds - usual)) for size, seconds in self.parts]
        spendable = (SLOWER - 1) * usual
        per_token = sorted(cost / size for size, cost in parts)[int(CAUTION * len(parts))]
        fixed, slope = _line(parts)
        if min(fixed, *(cost for _, cost in parts)) >= spendable:
            spendable, per_token = fixed, slope
        return max(1, int(min(most, spendable / max(per_token, 1e-9))))

    def learn(self, seconds: float, num_read: int) -> None:
        """A round took so long, in which so many prompt tokens were read beside other rows."""
        if num_read:
            self.parts.append((num_read, seconds))
            self.num_since_usual += 1
        else:
            self.usual.append(seconds)
            self.num_since_usual = 0


def _line(parts: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Seconds that parts (size, cost) take whatever their size, and seconds per token: a line
    through the medians of the shorter and the longer half; through zero where all are alike."""
    parts = sorted(parts)
    half = len(parts) // 2
    shorter, longer = parts[: half or 1], parts[half:]
    low, high = (median(size for size, _ in side) for side in (shorter, longer))
    less, more = (median(cost for _, cost in side) for side in (shorter, longer))
    if high < 1.5 * low:
        return 0.0, more / high
    slope = max(0.0, (more - less) / (high - low))
    return max(0.0, less - slope * low), slope
