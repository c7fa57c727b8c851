"""Attention over keys and values of rows that differ in length.

Keys and values lie in pages of PAGE slots, found by address.  Of each layer and head a page has the
keys as panels of LANES slots, (PAGE / LANES, head size, LANES), and then the values, (PAGE, padded
head size).  So scores and averages are both the tile product; its rows are the queries of one text
row that share a key head.  Nothing past a row's length is read, so forgetting tokens moves no data,
and pages need not be cleared.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from forerun.lean.jit import compiled, counted, inner
from forerun.lean.plan import Ints, Plan
from forerun.lean.scalar import exp, floats_at, largest, normalise, total
from forerun.lean.shape import LANES, TOKENS
from forerun.lean.tile import multiply_float32, multiply_float32_onto

Floats = NDArray[np.float32]

PAGE = 64  # slots; a multiple of LANES
SPARE = 16  # columns


class HeadShape(NamedTuple):
    """The shape of a layer's attention."""

    queries: int  # heads
    keys: int  # heads; each serves queries / keys of the former
    size: int
    wide: int  # size, padded
    scale: Any  # float32, of the scores
    has_norms: bool
    eps: Any  # float32, of these norms


class Cache(NamedTuple):
    """Where the keys and values of all rows lie, and the rotary table."""

    pages: Ints  # (rows, pages of a row): addresses
    cos: Floats  # (positions, head size / 2)
    sin: Floats


@inner
def keys_at(heads: HeadShape, cache: Cache, layer: int, row: int, page: int, head: int) -> Any:
    """The address of the keys in one page."""
    before = layer * heads.keys + head
    return cache.pages[row, page] + 4 * before * PAGE * (heads.size + heads.wide)


@inner
def values_at(heads: HeadShape, cache: Cache, layer: int, row: int, page: int, head: int) -> Any:
    """The address of the values in one page."""
    return keys_at(heads, cache, layer, row, page, head) + 4 * PAGE * heads.size


@counted
def make_scores(heads: HeadShape, cache: Cache) -> Floats:
    """Memory of one thread, a row for each query of a tile: scores of all keys, sums, a weight.

    The other columns keep rows from lying a power of two apart, where they would compete for the
    same places in a core's cache.
    """
    return np.empty((TOKENS, cache.pages.shape[1] * PAGE + heads.wide + SPARE), np.float32)


@inner
def place(
    heads: HeadShape, plan: Plan, cache: Cache, layer: int, token: int, norms: Floats, qkv: Floats,
    queries: Floats,
) -> None:  # fmt: skip
    """Rotate one token's queries and keys, and store its keys and values."""
    size, half = heads.size, heads.size // 2
    group = heads.queries // heads.keys
    row = plan.rows[token]
    page, slot = divmod(plan.slots[token], PAGE)
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
            at = keys_at(heads, cache, layer, row, page, head - heads.queries)
            keys = floats_at(at, PAGE * size)
            begin = slot // LANES * size * LANES + slot % LANES
            for i in range(size):
                keys[begin + i * LANES] = vector[i]
    for head in range(heads.keys):
        begin = (heads.queries + heads.keys + head) * size
        values = floats_at(values_at(heads, cache, layer, row, page, head), PAGE * heads.wide)
        for i in range(heads.wide):  # zeros as padding: leftovers may be subnormal, and slow
            values[slot * heads.wide + i] = qkv[token, begin + i] if i < size else np.float32(0)


@inner
def attend(
    heads: HeadShape, plan: Plan, cache: Cache, layer: int, tile: int, queries: Floats,
    scores: Floats, mixed: Floats,
) -> None:  # fmt: skip
    """Averages (tokens, query heads * size) for the queries of one tile, which share a key head."""
    first, count, head = plan.tiles[tile]
    group = heads.queries // heads.keys
    row = plan.rows[first // group]
    seen = plan.slots[(first + count - 1) // group] + 1  # by some query
    stride, sums_at = scores.shape[1], scores.shape[1] - SPARE - heads.wide
    weights = scores[:, stride - SPARE]
    q_at = (head * queries.shape[1] + first) * heads.size
    for begin in range(0, seen, LANES):
        page, slot = divmod(begin, PAGE)
        keys = keys_at(heads, cache, layer, row, page, head)
        multiply_float32(
            queries, q_at, heads.size, keys, slot * heads.size, 4 * LANES, 1, heads.size,
            scores, begin, stride, count,
        )  # fmt: skip
    for i in range(count):
        token = (first + i) // group
        begin, end = plan.branch_at[token], plan.branch_at[token + 1]
        branch, before = plan.branch[begin:end], plan.before[token]
        draw_together(scores[i], before, branch)
        weights[i] = np.float32(1) / soften(scores[i], before + len(branch), seen)
        spread_out(scores[i], before, branch)
    for i in range(count):
        for j in range(heads.wide):
            scores[i, sums_at + j] = np.float32(0)
    for begin in range(0, seen, PAGE):
        values = values_at(heads, cache, layer, row, begin // PAGE, head)
        for column in range(0, heads.wide, LANES):
            multiply_float32_onto(
                scores, begin, stride, values, column, 4 * heads.wide, 1, min(PAGE, seen - begin),
                scores, sums_at + column, stride, count,
            )  # fmt: skip
    for i in range(count):
        token, query = divmod(first + i, group)
        out = mixed[token, (head * group + query) * heads.size :]
        for j in range(heads.size):
            out[j] = scores[i, sums_at + j] * weights[i]


@compiled
def draw_together(scores: Floats, before: int, branch: Ints) -> None:
    """Move the scores of a branch right behind those of the text before it.  The sums over keys are
    then added up in the same order as for the same text without a tree."""
    for i in range(len(branch)):
        scores[before + i] = scores[branch[i]]


@compiled
def spread_out(scores: Floats, before: int, branch: Ints) -> None:
    """Move the scores of a branch back to their slots; where they were, zeros remain."""
    for i in range(len(branch) - 1, -1, -1):
        score = scores[before + i]
        scores[before + i] = np.float32(0)
        scores[branch[i]] = score


@compiled
def soften(scores: Floats, count: int, seen: int) -> Any:
    """exp(score - largest) of the first `count` keys, which a query may see, and zero for the
    others below `seen`; returns the sum."""
    top = largest(scores, count)
    for j in range(count):
        scores[j] = exp(scores[j] - top)
    for j in range(count, seen):
        scores[j] = np.float32(0)
    return total(scores, count)
