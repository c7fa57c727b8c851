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

from forerun.lean.jit import compiled
from forerun.lean.scalar import exp, largest, normalise, total
from forerun.lean.tile import LANES, TOKENS, multiply

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]


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


class Plan(NamedTuple):
    """What the tokens of a pass are and where they stand."""

    order: Ints  # (tokens,): 0, 1, 2, ...
    ids: Ints  # (tokens,)
    rows: Ints  # (tokens,)
    positions: Ints  # (tokens,)
    tiles: Ints  # (tiles, 2): first query and number of queries; a tile is of one row
    wanted: Ints  # (logits,): tokens
    places: Ints  # (logits,): where their logits go


@compiled
def place(
    heads: Heads, plan: Plan, cache: Cache, layer: int, token: int, norms: Floats, qkv: Floats,
    queries: Floats,
) -> None:  # fmt: skip
    """Rotate one token's queries and keys, and store its keys and values."""
    size, half = heads.size, heads.size // 2
    group = heads.queries // heads.keys
    row, at = plan.rows[token], plan.positions[token]
    cos, sin = cache.cos[at], cache.sin[at]
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


@compiled
def attend(
    heads: Heads, plan: Plan, cache: Cache, layer: int, tile: int, head: int, queries: Floats,
    scores: Floats, block: Floats, mixed: Floats,
) -> None:  # fmt: skip
    """Averages (tokens, query heads * size) for the queries of one tile that share a key head."""
    first, count = plan.tiles[tile]
    group = heads.queries // heads.keys
    row = plan.rows[first // group]
    seen = plan.positions[(first + count - 1) // group] + 1  # by the last query
    keys, values = cache.keys[layer, row, head], cache.values[layer, row, head]
    panel = heads.size * LANES
    q_at = (head * queries.shape[1] + first) * heads.size
    for number in range((seen + LANES - 1) // LANES):
        multiply(
            queries, q_at, heads.size, keys, number * panel, LANES, heads.size,
            scores, number * LANES, scores.shape[1], count,
        )  # fmt: skip
    weights = np.empty(TOKENS, np.float32)
    for i in range(count):
        own = plan.positions[(first + i) // group] + 1
        weights[i] = np.float32(1) / soften(scores[i], own, seen)
    for begin in range(0, heads.wide, LANES):
        multiply(
            scores, 0, scores.shape[1], values, begin, heads.wide, seen, block, 0, LANES, count
        )
        for i in range(count):
            token, query = divmod(first + i, group)
            column = (head * group + query) * heads.size + begin
            for j in range(min(LANES, heads.size - begin)):
                mixed[token, column + j] = block[i, j] * weights[i]


@compiled
def soften(scores: Floats, own: int, seen: int) -> Any:
    """exp(score - largest) of the keys a query may see, zero for the rest; their sum."""
    top = largest(scores, own)
    for j in range(own):
        scores[j] = exp(scores[j] - top)
    for j in range(own, seen):
        scores[j] = np.float32(0)
    return total(scores, own)
