"""Decides how long prompts wait for further prompts, so that one round can read them together.

Captured rounds that read prompts have no drafts, however few tokens they read, and reading many
tokens takes little longer than reading a few. So prompts wait until they fill a round, as long as
recent arrivals suggest that more will come in time. Time is the sum of the seconds of rounds, so
plans read no clock.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

MOST_WAITED = 0.08
"""The most seconds that prompts wait for one another."""
LATELY = 1.0
"""The arrivals within this many seconds before now show how many to expect in the future."""


@dataclass
class Gathering:
    """Records when prompts arrive, and decides whether waiting prompts are read now."""

    seconds: float = 0.0  # that have passed
    came: deque[tuple[float, int]] = field(default_factory=deque)
    """The latest prompts: when each arrived, and its number of tokens."""
    since: float | None = None  # when prompts began to wait; None: none do

    def pass_by(self, seconds: float) -> None:
        """Note how long a round took."""
        self.seconds += seconds
        while self.came and self.came[0][0] < self.seconds - LATELY:
            self.came.popleft()

    def add(self, num_tokens: int) -> None:
        """Note that a prompt has come, and how many tokens of it are to be read."""
        self.came.append((self.seconds, num_tokens))

    def forget(self) -> None:
        """Forget all arrivals, because the engine has been idle."""
        self.came.clear()
        self.since = None

    def waits(self, num_tokens: int, room: int) -> bool:
        """Whether prompts with `num_tokens` to read should wait for more, where a round has room
        for `room` tokens."""
        since = self.seconds if self.since is None else self.since
        left = MOST_WAITED - (self.seconds - since)
        expected = left * sum(count for _, count in self.came) / LATELY
        may_fill = num_tokens < room <= num_tokens + expected
        self.since = since if left > 0 and may_fill else None
        return self.since is not None
