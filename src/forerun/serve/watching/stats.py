"""What the last seconds were like, for `/v1/stats` and the gauges of the page."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

WINDOW = 3.0
"""Seconds that count as the present."""


@dataclass
class Work:
    """What was done at one moment: tokens given out, and rounds with what was guessed in them."""

    tokens: int = 0
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0


class Recent:
    """Sums over the last seconds."""

    def __init__(self, clock: Callable[[], float], window: float = WINDOW) -> None:
        self._now = clock
        self._window = window
        self._events: deque[tuple[float, Work]] = deque()
        self._sum = Work()
        self._busy_since = self._now()

    def add(self, work: Work) -> None:
        self._forget()
        if not self._events:
            self._busy_since = self._now()
        self._events.append((self._now(), work))
        self._count(work, 1)

    def rates(self) -> dict[str, float | None]:
        """Tokens a second, acceptance and mean draft length; None where there was nothing."""
        self._forget()
        total = self._sum
        span = min(self._window, max(self._now() - self._busy_since, 1.0))
        return {
            "tokens_per_second": total.tokens / span,
            "acceptance_rate": total.accepted / total.drafted if total.drafted else None,
            "mean_draft_length": total.drafted / total.rounds if total.rounds else None,
        }

    def _forget(self) -> None:
        oldest = self._now() - self._window
        while self._events and self._events[0][0] < oldest:
            self._count(self._events.popleft()[1], -1)

    def _count(self, work: Work, sign: int) -> None:
        self._sum.tokens += sign * work.tokens
        self._sum.rounds += sign * work.rounds
        self._sum.drafted += sign * work.drafted
        self._sum.accepted += sign * work.accepted
