"""A clock for worlds that are made up."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class StillClock:
    """Time passes when somebody says so."""

    seconds: float = 0.0

    def __call__(self) -> float:
        return self.seconds

    def pass_by(self, seconds: float) -> None:
        self.seconds += seconds
