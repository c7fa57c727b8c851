"""Seconds of something as a function of its size."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median


@dataclass(frozen=True)
class Curve:
    """A line between known sizes; level below them, in proportion at most above them."""

    points: tuple[tuple[int, float], ...] = ()  # sizes, seconds; both rise
    _slopes: dict[int, float] = field(default_factory=dict, repr=False, compare=False)
    _added: dict[int, tuple[float, ...]] = field(default_factory=dict, repr=False, compare=False)

    def __call__(self, size: int) -> float:
        if not self.points:
            return 0.0
        last, seconds = self.points[0]
        slope = 0.0
        for other, more in self.points[1:]:
            if last >= size:
                break
            slope = (more - seconds) / (other - last)
            if other > size:
                return seconds + slope * (size - last)
            last, seconds = other, more
        proportion = seconds / max(1, last)
        slope = min(slope, proportion) if len(self.points) > 1 else proportion
        return seconds + slope * max(0, size - last)

    def slope(self, start: int) -> float:
        """Seconds that one more unit of size costs above `start`."""
        if start not in self._slopes:
            base = self(start)
            slopes = [(took - base) / (size - start) for size, took in self.points if size > start]
            self._slopes[start] = median(slopes) if slopes else self(start + 1) - base
        return self._slopes[start]

    def added(self, start: int, count: int) -> tuple[float, ...]:
        """Seconds that 1, 2, ... `count` more units cost above `start`."""
        if start not in self._added:
            base = self(start)
            self._added[start] = tuple(self(start + more) - base for more in range(1, count + 1))
        return self._added[start]
