"""The race of one row on the host, in which most tokens are not even weighed.

A weight is an exponential of a score, and a vocabulary has many.  Larger scores have larger
weights, so the largest of a block can be found among scores, and only the tokens that may still
win are weighed: some hundreds of 50,000.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import array_api_compat as compat
import numpy as np

from forerun.base.arrays import BLOCK, HostArray
from forerun.noise.addresses import Purpose
from forerun.noise.race import SLACK, Key, arrival, lane_noise, smallest_weight, uniform_one

NUMPY = compat.array_namespace(np.empty(0))


def race_row(
    scores: HostArray,
    weigh: Callable[[HostArray], HostArray],
    key: Key,
    position: int,
    minimum: HostArray,
    lane: HostArray,
) -> int:
    """The winner of a single race where the block minima are known: a NumPy twin of `race`.

    scores: (V,), of which `weigh` makes weights, larger ones of larger scores; of most tokens that
    is never done.  key: (rounds, 2, 1); minimum and lane: (num_blocks,).
    """
    size, starts = len(scores), np.arange(0, len(scores), BLOCK)
    num_whole = size // BLOCK
    largest = scores[: num_whole * BLOCK].reshape(-1, BLOCK).max(axis=1)
    if num_whole < len(starts):
        largest = np.append(largest, scores[num_whole * BLOCK :].max())
    top = int(largest.argmax())
    likeliest = int(scores[top * BLOCK : (top + 1) * BLOCK].argmax())
    largest = weigh(largest)
    fastest = starts + lane
    fastest_scores = scores.take(fastest, mode="clip")
    fastest_scores[fastest >= size] = -np.inf
    best = arrival(NUMPY, minimum, weigh(fastest_scores)).min()
    time = minimum[top]
    if likeliest != lane[top]:
        seed = (int(key[0, 0, 0]), int(key[0, 1, 0]))
        unit = uniform_one(seed, position, top * BLOCK + likeliest, Purpose.TARGET)
        time = time - math.log1p(-unit)
    best = min(best, time / float(largest[top]))
    needed = np.maximum(minimum * (SLACK / best), smallest_weight(NUMPY, minimum.dtype))
    opened = np.flatnonzero(largest >= needed)
    token = starts[opened, None] + np.arange(BLOCK)
    weights = weigh(scores.take(token, mode="clip"))
    row, column = np.nonzero((weights >= needed[opened, None]) & (token < size))
    if len(row) == 1:
        return int(token[row[0], column[0]])
    block, token, weights = opened[row], token[row, column], weights[row, column]
    at = np.full_like(token, position)
    noise = lane_noise(NUMPY, key, at, token, minimum[block], lane[block])
    return int(token[arrival(NUMPY, noise, weights).argmin()])
