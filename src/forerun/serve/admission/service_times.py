"""When to try again: an estimate from how long recent requests took."""

from __future__ import annotations

from collections import deque

NUM_RECENT = 64
LONGEST = 60.0
"""Seconds; nobody is sent away for longer than this."""


class ServiceTimes:
    """Seconds between entry and end of the last choices."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=NUM_RECENT)

    def add(self, seconds: float) -> None:
        self._recent.append(seconds)

    def until_free(self, num_open: int, num_places: int) -> float:
        """Seconds until the next of `num_open` choices ends, if ends are spread evenly.

        A choice is open for as long as the recent ones were, so `num_open` of them end at a rate of
        `num_open` per such time; those asking for several places wait for several ends.
        """
        if not self._recent or not num_open:
            return 1.0
        mean = sum(self._recent) / len(self._recent)
        return min(max(1.0, mean * num_places / num_open), LONGEST)
