"""Attention over keys and values of rows that differ in length.

Keys and values lie in pages of PAGE slots, found by address.  Of each layer and head a page has the
keys as panels of LANES slots, (PAGE / LANES, head size, LANES), and the values as panels of LANES
numbers, (padded head size / LANES, PAGE, LANES).  So scores and averages are both the tile product;
its rows are the queries of one text row that share a key head.  Nothing past a row's length counts,
so forgetting tokens moves no data.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from forerun.lean.jit import compiled, counted, inner
from forerun.lean.page_tile import QUERIES, multiply_keys, multiply_values_onto
from forerun.lean.plan import Ints, Plan
from forerun.lean.scalar import PER_LN2, floats_at, largest, normalise
from forerun.lean.shape import LANES
from forerun.lean.softmax import exp2_total

Floats = NDArray[np.float32]

PAGE = 64  # slots; a multiple of LANES
SPARE = 16  # columns
UNLIMITED = 2**62  # the window of a layer that sees the whole text


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

    pages: Ints  # (rows, pages of a row): addresses of their first keys
    apart: Ints  # (rows, pages of a row): bytes from keys to values, and on to the next keys
    cos: Floats  # (tables, positions, head size / 2)
    sin: Floats


@inner
def keys_at(heads: HeadShape, cache: Cache, layer: int, row: int, page: int, head: int) -> Any:
    """The address of the keys in one page."""
    before = layer * heads.keys + head
    return cache.pages[row, page] + 2 * before * cache.apart[row, page]


@inner
def values_at(heads: HeadShape, cache: Cache, layer: int, row: int, page: int, head: int) -> Any:
    """The address of the values in one page."""
    return keys_at(heads, cache, layer, row, page, head) + cache.apart[row, page]


def score_columns(num_pages: int, wide: int) -> int:
    """Numbers kept for a query: the scores of all keys, sums, and a weight.

    The other columns keep rows from lying a power of two apart, where they would compete for the
    same places in a core's cache.
    """
    return num_pages * PAGE + wide + SPARE


compiled_score_columns = compiled(score_columns)


@counted
def make_scores(heads: HeadShape, cache: Cache) -> Floats:
    """Memory of one thread, a row for each query of a tile."""
    num_columns = compiled_score_columns(cache.pages.shape[1], heads.wide)
    return np.empty((QUERIES, num_columns), np.float32)


@inner
def place(
    heads: HeadShape, plan: Plan, cache: Cache, layer: int, table: int, token: int, norms: Floats,
    qkv: Floats, queries: Floats,
) -> None:  # fmt: skip
    """Rotate one token's queries and keys, and store its keys and values."""
    size, half = heads.size, heads.size // 2
    group = heads.queries // heads.keys
    row = plan.rows[token]
    page, slot = divmod(plan.slots[token], PAGE)
    position = plan.positions[token]
    cos, sin = cache.cos[table, position], cache.sin[table, position]
    scale = heads.scale * PER_LN2  # weights are powers of two
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
                query[i] = vector[i] * scale
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
            at = (i // LANES * PAGE + slot) * LANES + i % LANES
            values[at] = qkv[token, begin + i] if i < size else np.float32(0)


@inner
def attend(
    heads: HeadShape, plan: Plan, cache: Cache, layer: int, window: int, tile: int,
    queries: Floats, scores: Floats, mixed: Floats,
) -> None:  # fmt: skip
    """Averages (tokens, query heads * size) for the queries of one tile, which share a key head.

    A query sees the last `window` tokens of its text, its own included.  Where tiles are few and
    texts long, `forward` shares the three steps of a tile between threads: with the same numbers.
    """
    score_keys(heads, plan, cache, layer, window, tile, 0, UNLIMITED, queries, scores, 0)
    for i in range(plan.tiles[tile, 1]):
        weigh(heads, plan, window, tile, i, scores[i])
    average(heads, plan, cache, layer, window, tile, 0, heads.wide, scores, 0, mixed)


@inner
def seen_from(plan: Plan, token: int, window: int) -> Any:
    """The first position that a token sees."""
    num_branch = plan.branch_at[token + 1] - plan.branch_at[token]
    return max(0, plan.before[token] + num_branch - window)


@inner
def span(heads: HeadShape, plan: Plan, tile: int, window: int) -> Any:
    """The slots that queries of a tile see, from the beginning of a page."""
    group = heads.queries // heads.keys
    first, count, _ = plan.tiles[tile]
    last = (first + count - 1) // group
    begin = plan.slots[last]
    for token in range(first // group, last + 1):
        begin = min(begin, seen_from(plan, token, window))
    return begin // PAGE * PAGE, plan.slots[last] + 1


@inner
def score_keys(
    heads: HeadShape, plan: Plan, cache: Cache, layer: int, window: int, tile: int, begin: int,
    end: int, queries: Floats, scores: Floats, at: int,
) -> None:  # fmt: skip
    """Scores of the slots from `begin` to `end`, whole pages, for the queries of a tile; into the
    rows of `scores` from `at` on."""
    first, count, head = plan.tiles[tile]
    row, stride = plan.rows[first // (heads.queries // heads.keys)], scores.shape[1]
    seen, unseen = span(heads, plan, tile, window)
    q_at = (head * queries.shape[1] + first) * heads.size
    last = min(end, unseen)
    for slot in range(max(begin, seen), last, PAGE):
        keys = keys_at(heads, cache, layer, row, slot // PAGE, head)
        if slot + 2 * PAGE <= unseen:  # what is fetched meanwhile: a whole page of keys, though
            # its scores may be another's work; or the first values
            later = keys_at(heads, cache, layer, row, slot // PAGE + 1, head)
        else:
            later = values_at(heads, cache, layer, row, seen // PAGE, head)
        num_panels = (min(PAGE, last - slot) + LANES - 1) // LANES
        multiply_keys(
            queries, q_at, heads.size, keys, later, 4 * LANES * heads.size, num_panels, heads.size,
            scores, at * stride + slot, stride, count,
        )  # fmt: skip


@inner
def weigh(heads: HeadShape, plan: Plan, window: int, tile: int, query: int, scores: Floats) -> None:
    """Weights of the keys out of one query's scores, and behind them the inverse of their sum."""
    token = (plan.tiles[tile, 0] + query) // (heads.queries // heads.keys)
    branch = plan.branch[plan.branch_at[token] : plan.branch_at[token + 1]]
    before = plan.before[token]
    begin, end = span(heads, plan, tile, window)
    draw_together(scores, before, branch)
    visible = seen_from(plan, token, window)
    total = soften(scores, begin, visible, before + len(branch), end)
    scores[len(scores) - SPARE] = np.float32(1) / total
    spread_out(scores, before, branch)


@inner
def average(
    heads: HeadShape, plan: Plan, cache: Cache, layer: int, window: int, tile: int, column: int,
    last: int, scores: Floats, at: int, mixed: Floats,
) -> None:  # fmt: skip
    """The averages from `column` to `last`, whole panels, for the queries of a tile, whose weights
    lie in the rows of `scores` from `at` on."""
    first, count, head = plan.tiles[tile]
    group, stride = heads.queries // heads.keys, scores.shape[1]
    row, sums_at = plan.rows[first // group], stride - SPARE - heads.wide
    begin, end = span(heads, plan, tile, window)
    for i in range(count):
        for j in range(column, last):
            scores[at + i, sums_at + j] = np.float32(0)
    for slot in range(begin, end, PAGE):
        values = values_at(heads, cache, layer, row, slot // PAGE, head)
        later = values
        if slot + 2 * PAGE <= end:
            later = values_at(heads, cache, layer, row, slot // PAGE + 1, head)
        skipped = 4 * PAGE * column
        multiply_values_onto(
            scores, at * stride + slot, stride, values + skipped, later + skipped, 4 * LANES * PAGE,
            (last - column) // LANES, min(PAGE, end - slot),
            scores, at * stride + sums_at + column, stride, count,
        )  # fmt: skip
    for i in range(count):
        token, query = divmod(first + i, group)
        out = mixed[token, (head * group + query) * heads.size :]
        for j in range(column, min(last, heads.size)):
            out[j] = scores[at + i, sums_at + j] * scores[at + i, stride - SPARE]


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
def soften(scores: Floats, begin: int, visible: int, count: int, end: int) -> Any:
    """2**(score - largest) of the keys from `visible` to `count`, which a query sees, and zero for
    the others between `begin` and `end`; returns the sum."""
    top = largest(scores[visible:count], count - visible)
    for j in range(begin, visible):
        scores[j] = np.float32(0)
    for j in range(count, end):
        scores[j] = np.float32(0)
    return exp2_total(scores, visible, count, top)
