"""Exact laws of whole functions: the core's noise is answered by an rng that can be listed."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from forerun import verification
from forerun.base.arrays import to_numpy
from forerun.classic import numpy_verify, torch_verify


class RngNoise:
    """What a rule asks of its noise, answered by an rng such as `certify` passes."""

    def __init__(self, xp: Any, rng: Any) -> None:
        self.xp, self.rng = xp, rng

    def coins(self, slots: list[int], chances: Any) -> Any:
        tossed = [[bool(self.rng.random() < float(x)) for x in row] for row in to_numpy(chances)]
        return self.xp.asarray(tossed, dtype=self.xp.bool)

    def draw(self, weights: Any) -> Any:
        (row,) = to_numpy(weights).astype(np.float64)
        return self.xp.asarray([int(self.rng.choice(len(row), p=row / row.sum()))])


@pytest.fixture
def draw_from(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """draw_from(rng): from now on rounds take their noise from rng instead of a seed."""
    current: dict[str, Any] = {}
    for module in (numpy_verify, torch_verify):  # a seed of 64 bits has too many outcomes to list
        monkeypatch.setattr(module, "fresh_seed", lambda: 0)
    monkeypatch.setattr(
        verification, "CounterNoise", lambda xp, *address: RngNoise(xp, current["rng"])
    )
    return lambda rng: current.update(rng=rng)
