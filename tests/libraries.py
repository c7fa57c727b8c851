"""The array libraries that must agree, behind one face, and the odds that tests state."""

from __future__ import annotations

import importlib
import math
from dataclasses import dataclass
from typing import Any

import array_api_compat as compat
import numpy as np
import pytest

from forerun.base.arrays import to_numpy, widest_float

MODULES = {"numpy": "numpy", "torch": "torch", "strict": "array_api_strict", "jax": "jax.numpy"}
NAMES = ["numpy", "torch", "strict", pytest.param("jax", marks=pytest.mark.jax)]


@dataclass(frozen=True)
class Library:
    """One array library: its standard namespace, and the way into it."""

    name: str
    xp: Any

    def array(self, values: Any, dtype: str | None = None) -> Any:
        """The same numbers as an array of this library."""
        host = np.asarray(values) if dtype is None else np.asarray(values).astype(dtype)
        return self.xp.asarray(host.copy() if self.name == "torch" else host)

    @property
    def widest(self) -> np.dtype[Any]:
        """The floating type its noise is made of, as NumPy's."""
        return to_numpy(self.xp.zeros(1, dtype=widest_float(self.xp, None))).dtype


def load(name: str) -> Library:
    """The library of that name; a test that needs a missing one is skipped."""
    package = MODULES[name].split(".")[0]
    pytest.importorskip(package)
    module = importlib.import_module(MODULES[name])
    return Library(name, compat.array_namespace(module.asarray([0.0])))


def largest_distance(samples: int, odds: float) -> float:
    """How far an empirical distribution function strays with probability `odds` at most.

    Dvoretzky-Kiefer-Wolfowitz with Massart's constant: true for every law and sample size.
    """
    return math.sqrt(math.log(2 / odds) / (2 * samples))


def largest_bias(cells: int, samples: int, odds: float) -> float:
    """How far, in total variation, frequencies stray with probability `odds` at most (Weissman)."""
    return math.sqrt((cells * math.log(2) + math.log(1 / odds)) / (2 * samples))
