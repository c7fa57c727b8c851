"""Attention over keys and values of rows that differ in length.

Keys are kept as panels of LANES positions, (positions / LANES, head size, LANES), and values as
(positions, padded head size): then scores and averages are both the tile product, the queries of
one row that share a key head being its rows.  What lies past a row's length is never read or
weighs nothing, so forgetting tokens moves no data.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from forerun.lean.jit import compiled, inner
from forerun.lean.plan import Ints, Plan
from forerun.lean.scalar import exp, largest, normalise, total
from forerun.lean.shape import LANES
from forerun.lean.tile import multiply_float32

Floats = NDArray[np.float32]


class Heads(NamedTuple):
    """The shape of a layer's attention."""

    queries: int  # heads
    keys: int  # heads; each serves queries / keys of the former
    size: int
    wide: int  # size, padded
    scale: Any  # float32, of the scores
    has_norms: bool
    eps: Any  # float32, of these norms


class Cache(NamedTuple):
    """Keys and values of all layers and rows."""

    keys: Floats  # (layers, rows, heads, slots / LANES, head size, LANES)
    values: Floats  # (layers, rows, heads, slots, padded head size)
    slots: int
    cos: Floats  # (slots, head size / 2)
    sin: Floats


@inner
def place(
    heads: Heads, plan: Plan, cache: Cache, layer: int, token: int, norms: Floats, qkv: Floats,
    queries: Floats,
) -> None:  # fmt: skip
    """Rotate one token's queries and keys, and store its keys and values."""
    size, half = heads.size, heads.size // 2
    group = heads.queries // heads.keys
    row, at = plan.rows[token], plan.slots[token]
    cos, sin = cache.cos[plan.positions[token]], cache.sin[plan.positions[token]]
    for head in range(heads.queries + heads.keys):
        vector = qkv[token, head * size : (head + 1) * size]
        if heads.has_norms:
            normalise(vector, norms[int(head >= heads.queries)], heads.eps, vector)
        for i in range(half):
            low, high = vector[i], vector[i + half]
            vector[i] = low * cos[i] - high * sin[i]
            vector[i + half] = high * cos[i] + low * sin[i]
        if head < heads.queries:
            query = queries[head // group, token * group + head % group]
            for i in range(size):
                query[i] = vector[i] * heads.scale
        else:
            keys = cache.keys[layer, row, head - heads.queries, at // LANES]
            for i in range(size):
                keys[i, at % LANES] = vector[i]
    for head in range(heads.keys):
        begin = (heads.queries + heads.keys + head) * size
        values = cache.values[layer, row, head, at]
        for i in range(size):
            values[i] = qkv[token, begin + i]


@inner
def attend(
    heads: Heads, plan: Plan, cache: Cache, layer: int, tile: int, head: int, queries: Floats,
    scores: Floats, block: Floats, mixed: Floats,
) -> None:  # fmt: skip
    """Averages (tokens, query heads * size) for the queries of one tile that share a key head."""
    first, count = plan.tiles[tile]
    group = heads.queries // heads.keys
    row = plan.rows[first // group]
    seen = plan.slots[(first + count - 1) // group] + 1  # by some query
    keys, values = cache.keys[layer, row, head], cache.values[layer, row, head]
    panel, stride = heads.size * LANES, scores.shape[1]
    q_at = (head * queries.shape[1] + first) * heads.size
    for number in range((seen + LANES - 1) // LANES):
        multiply_float32(
            queries, q_at, heads.size, keys, number * panel, 4 * LANES, 1, heads.size,
            scores, number * LANES, stride, count,
        )  # fmt: skip
    weights = scores[:, cache.slots]  # a column past all keys
    for i in range(count):
        token = (first + i) // group
        begin, end = plan.branch_at[token], plan.branch_at[token + 1]
        branch, before = plan.branch[begin:end], plan.before[token]
        draw_together(scores[i], before, branch)
        weights[i] = np.float32(1) / soften(scores[i], before + len(branch), seen)
        spread_out(scores[i], before, branch)
    for begin in range(0, heads.wide, LANES):
        multiply_float32(
            scores, 0, stride, values, begin, 4 * heads.wide, 1, seen, block, 0, LANES, count
        )
        for i in range(count):
            token, query = divmod(first + i, group)
            column = (head * group + query) * heads.size + begin
            for j in range(min(LANES, heads.size - begin)):
                mixed[token, column + j] = block[i, j] * weights[i]


@compiled
def draw_together(scores: Floats, before: int, branch: Ints) -> None:
    """Move the scores of a branch behind those before it: there they are what the same text
    without a tree would make them, also in what is summed first."""
    for i in range(len(branch)):
        scores[before + i] = scores[branch[i]]


@compiled
def spread_out(scores: Floats, before: int, branch: Ints) -> None:
    """Undo that; zeros stay behind."""
    for i in range(len(branch) - 1, -1, -1):
        score = scores[before + i]
        scores[before + i] = np.float32(0)
        scores[branch[i]] = score


@compiled
def soften(scores: Floats, own: int, seen: int) -> Any:
    """exp(score - largest) of the keys a query may see, zero for the rest; their sum."""
    top = largest(scores, own)
    for j in range(own):
        scores[j] = exp(scores[j] - top)
    for j in range(own, seen):
        scores[j] = np.float32(0)
    return total(scores, own)
