"""The law of the first tokens of many texts, compared with the target's by chi-square."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
import torch

from forerun.gpu.model import GpuModel

FEW, NUM_TOKENS, NUM_TEXTS, BATCH = 12, 3, 20_000, 64
Z_ALARM, Z_MISS = 4.753, 3.09  # normal quantiles of one in a million, and of one in a thousand
START = [1, 2, 3]


def joint_law(model: GpuModel, num_tokens: int) -> dict[tuple[int, ...], float]:
    """The law of the first tokens at temperature 1, by scoring every beginning."""
    law: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(num_tokens):
        longer: dict[tuple[int, ...], float] = {}
        for text, chance in law.items():
            row = model.score(model.start(1, 64), [0], [[*START, *text]], [1])[0, 0]
            probs = torch.softmax(row.double(), -1).tolist()
            longer |= {(*text, token): chance * prob for token, prob in enumerate(probs)}
        law = longer
    return law


def limit(num_cells: int) -> float:
    """Of chi-square: a correct law exceeds it once in a million (Wilson and Hilferty)."""
    df = num_cells - 1
    return df * (1 - 2 / (9 * df) + Z_ALARM * math.sqrt(2 / (9 * df))) ** 3


def detected(num_cells: int) -> float:
    """A chi-square distance, times the number of texts, that is missed once in a thousand: the
    statistic has mean df + d and variance 2 df + 4 d."""
    df, distance = num_cells - 1, 0.0
    while df + distance - Z_MISS * math.sqrt(2 * df + 4 * distance) < limit(num_cells):
        distance += 1.0
    return distance


def chi_square(counts: dict[tuple[int, ...], float], law: dict[tuple[int, ...], float]) -> Any:
    """The statistic of counts against a law, and its cells; those of fewer than 5 become one."""
    expected = np.array([law[text] * NUM_TEXTS for text in law])
    observed = np.array([counts.get(text, 0) for text in law], float)
    small = expected < 5
    if small.any():
        expected = np.append(expected[~small], expected[small].sum())
        observed = np.append(observed[~small], observed[small].sum())
    return float(((observed - expected) ** 2 / expected).sum()), len(expected)


def marginal(law: dict[tuple[int, ...], float], length: int) -> dict[tuple[int, ...], float]:
    sums: dict[tuple[int, ...], float] = dict.fromkeys(product(range(FEW), repeat=length), 0.0)
    for text, chance in law.items():
        sums[text[:length]] += chance
    return sums
