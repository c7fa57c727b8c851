"""How many prompt tokens may be read in a round that also gives tokens to running requests.

Reading a whole prompt in one round delays everyone else. Reading it in parts makes several rounds
longer; with longer parts the new request joins sooner, and the more requests share a round, the
less it costs each. So a part is as long as it can be while the round takes at most `slowdown` times
a usual one, estimated from what the latest parts have added. A usual round reads no part. Its
duration changes as answers grow, begin and end, so now and then, and when the number of rows has
changed much, a round goes without a part to be timed.

Some models read each row in a pass of its own, and short parts take as long as longer ones. Where
that fixed cost alone exceeds the limit, the tokens of a part may add as much again.

Where no request is being answered, a round delays only waiting prompts, so it may take
`ALONE_SECONDS`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Real
from operator import itemgetter
from statistics import median
from typing import Any

from forerun.base.errors import InputError, explain, wrong_type

SLOWDOWN = 4.0
"""A round with part of a prompt may take this many times as long as a usual one, unless an operator
chooses otherwise. With this value most requests are served in time, as measured by
`benchmarks/serve.py --slowdowns`."""

ALIKE = 1.25  # times as many rows, or fewer, that a usual round may have to count as one
FIRST = 2  # tokens of the first part, before anything was measured
GROWTH = 1.5  # times the largest of the latest parts that the next one may be at most
MOST_PACED_TOKENS = 512  # of a part, however quick it is
UNMEASURED = 32  # tokens of a part at most while no usual round has been timed
NUM_USUAL = 5  # latest rounds without prompts, of which the median counts
CAUTION = 2 / 3  # of the latest parts were cheaper per token than the next one is taken to be
ALONE_SECONDS = 0.25  # of a round in which nobody is answered
MOST_ALONE_TOKENS = 1024  # of such a round: who comes meanwhile waits for its end
ALONE = 64  # tokens of the first part in such a round
PROBE = 16  # rounds with parts, after which one goes without
NUM_PARTS = 8  # latest parts, from which their cost is estimated


@dataclass
class Pacing:
    """Learns how much longer a part of a prompt makes a round, and says how long the next part may
    be.

    slowdown: how many times as long as usual a round with a part may take, at least 1.
    """

    slowdown: float = SLOWDOWN
    usual: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=NUM_USUAL))
    """For the latest rounds without part of a prompt: the number of rows being answered, and the
    round's seconds."""
    parts: deque[tuple[int, float, int]] = field(default_factory=lambda: deque(maxlen=NUM_PARTS))
    """For the latest rounds with part of a prompt: the number of rows being answered, the round's
    seconds, and the tokens of the part."""
    alone: deque[float] = field(default_factory=lambda: deque(maxlen=NUM_PARTS))
    """Seconds per token in the latest rounds in which no request was being answered."""
    num_since_usual: int = 0

    def num_tokens(self, num_answered: int, room: int | None = None) -> int:
        """The number of prompt tokens to read in the next round; 0 if the round should be timed
        without any.

        num_answered: rows that are being answered.
        room: the most tokens that the round can read besides; None if there is no known limit.
        """
        if not num_answered:
            per_token = min(self.alone, default=ALONE_SECONDS / ALONE)  # of a long part
            return _at_least_one(ALONE_SECONDS, per_token, MOST_ALONE_TOKENS)
        largest = MOST_PACED_TOKENS if room is None else room
        usual = [seconds for rows, seconds in self.usual if _are_alike(rows, num_answered)]
        is_unknown = not usual
        if self.num_since_usual >= PROBE or (is_unknown and self.num_since_usual > 0):
            self.num_since_usual = 0
            return 0
        if not self.parts:
            return FIRST
        rows, _, largest_yet = max(self.parts, key=itemgetter(2))
        most = min(largest, max(FIRST, int(GROWTH * largest_yet)))
        if not self.usual:
            return min(most, UNMEASURED)
        alike = [part for part in self.parts if _are_alike(part[0], num_answered)]
        if not alike or is_unknown:
            return min(largest, max(1, int(largest_yet * min(1.0, num_answered / rows))))
        parts = [(size, max(0.0, seconds - median(usual))) for _, seconds, size in alike]
        spendable = (self.slowdown - 1) * median(usual)
        per_token = sorted(cost / size for size, cost in parts)[int(CAUTION * len(parts))]
        fixed, slope = _line(parts)
        if min(fixed, *(cost for _, cost in parts)) >= spendable:
            spendable, per_token = fixed, slope
        return min(most, _at_least_one(spendable, per_token, largest))

    def learn(self, seconds: float, num_answered: int, num_tokens: int) -> None:
        """Learn from the seconds of a round, the number of rows that it answered and the prompt
        tokens that it read."""
        if not num_answered:
            self.alone.append(seconds / num_tokens)
        elif num_tokens:
            self.parts.append((num_answered, seconds, num_tokens))
            self.num_since_usual += 1
        else:
            self.usual.append((num_answered, seconds))
            self.num_since_usual = 0


def _at_least_one(seconds: float, per_token: float, most: int) -> int:
    return max(1, int(min(most, seconds / max(per_token, 1e-9))))


def _are_alike(some: int, others: int) -> bool:
    return max(some, others) <= ALIKE * min(some, others)


def _line(parts: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Fit a line to parts (size, cost): returns the fixed seconds, and the seconds per token. It
    goes through the medians of the shorter and the longer half; through zero if all sizes are
    alike."""
    parts = sorted(parts)
    half = len(parts) // 2
    shorter, longer = parts[: half or 1], parts[half:]
    low, high = (median(size for size, _ in side) for side in (shorter, longer))
    less, more = (median(cost for _, cost in side) for side in (shorter, longer))
    if high < 1.5 * low:
        return 0.0, more / high
    slope = max(0.0, (more - less) / (high - low))
    return max(0.0, less - slope * low), slope


def check_slowdown(slowdown: Any) -> None:
    """Refuse a slowdown that is not a number of at least 1."""
    cure = "Use a number from 1 on: times as long as usual that a round may take."
    number: Any = Real
    if not isinstance(slowdown, number):
        raise wrong_type("slowdown", slowdown, cure)
    if not slowdown >= 1:
        raise InputError(explain("slowdown is out of range.", slowdown, cure))
