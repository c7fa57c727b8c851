"""Prompts that wait for one another, where each round that reads some is dear.

Captured rounds that read prompts have no drafts, however few tokens they read, and a large part
costs little more than its products.  So prompts wait until they fill a round, as long as more of
them are likely to come in time: for what has come lately.  Time passes by the rounds that were
timed, so plans read no clock.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

MOST_SECONDS = 0.08
"""That prompts wait for one another."""
LATELY = 1.0
"""Seconds in which came what is expected to come from now on."""


@dataclass
class Gathering:
    """Says when what has come is read."""

    seconds: float = 0.0  # that have passed
    came: deque[tuple[float, int]] = field(default_factory=deque)
    """When, and how many tokens, lately."""
    since: float | None = None  # prompts wait; None: none do

    def pass_by(self, seconds: float) -> None:
        """A round took so long."""
        self.seconds += seconds
        while self.came and self.came[0][0] < self.seconds - LATELY:
            self.came.popleft()

    def add(self, num_tokens: int) -> None:
        """So many tokens of a prompt have come."""
        self.came.append((self.seconds, num_tokens))

    def waits(self, num_tokens: int, room: int) -> bool:
        """Whether so many tokens wait for others, where a round has room for `room`."""
        since = self.seconds if self.since is None else self.since
        left = MOST_SECONDS - (self.seconds - since)
        expected = left * sum(count for _, count in self.came) / LATELY
        may_fill = num_tokens < room <= num_tokens + expected
        self.since = since if left > 0 and may_fill else None
        return self.since is not None
