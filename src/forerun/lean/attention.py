"""Attention over keys and values of rows that differ in length.

Keys and values lie in pages of PAGE slots, found by address.  Of each layer and head a page has the
keys as panels of LANES slots, (PAGE / LANES, head size, LANES), and the values as panels of LANES
numbers, (padded head size / LANES, PAGE, LANES).  So scores and averages are both the tile product;
its rows are the queries of one text row that share a key head.  Nothing past a row's length counts,
so forgetting tokens moves no data.

Queries are scaled so that the weight of a key is a power of two, which takes fewer steps than a
power of e.  `exp2_total` is written as LLVM instructions, because its sum vectorises only where
reordering is allowed, and there the compiler would simplify away the rounding inside the power.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numpy.typing import NDArray

from forerun.lean.formats import F32, I32, I64, load, spread, vector
from forerun.lean.jit import compiled, counted, inner, intrinsic
from forerun.lean.page_tile import QUERIES, multiply_keys, multiply_values_onto
from forerun.lean.plan import Ints, Plan
from forerun.lean.scalar import PER_LN2, ROUND, floats_at, largest, normalise
from forerun.lean.shape import LANES
from forerun.lean.tile import address, repeat_from

POWERS = (
    1.0,
    0.6931472028551291,
    0.2402264791361973,
    0.05550332471025955,
    0.009618437358281494,
    0.0013398874445756748,
    0.00015353361821153282,
)
"""The coefficients of a polynomial for 2**r on |r| <= 1/2, whose relative error is 2e-9. The
constant term is fixed."""
LOWEST = -125.0  # smaller exponents are raised to this, so that no power is subnormal

Floats = NDArray[np.float32]

PAGE = 64  # slots; a multiple of LANES
SPARE = 16  # columns beside the scores and sums of a query: the first holds the inverse of the sum
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
    """The addresses of the keys and values of all rows, and the rotary tables."""

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
    """The number of float32 columns that one query needs: the scores of all keys, the averages, and
    SPARE more.

    num_pages: pages of the longest row.  wide: the padded head size.  Only one spare column is
    used; the others keep rows of memory from lying a power of two apart, where they would compete
    for the same places in a core's cache.
    """
    return num_pages * PAGE + wide + SPARE


compiled_score_columns = compiled(score_columns)


@counted
def make_scores(heads: HeadShape, cache: Cache) -> Floats:
    """Working memory of one thread (QUERIES, score_columns): a row for each query of a tile."""
    num_columns = compiled_score_columns(cache.pages.shape[1], heads.wide)
    return np.empty((QUERIES, num_columns), np.float32)


@inner
def place(
    heads: HeadShape, plan: Plan, cache: Cache, layer: int, table: int, token: int, norms: Floats,
    qkv: Floats, queries: Floats,
) -> None:  # fmt: skip
    """Rotate the queries and keys of one token, and store its keys and values in its slot.

    table: the rotary table of this layer.  norms: (2, head size), of queries and of keys.
    qkv: (tokens, padded), with the token's queries, keys and values side by side; overwritten.
    queries: (key heads, tokens * queries per key, head size); receives the scaled queries.
    """
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
    """Write averages for the queries of one tile into `mixed` (tokens, query heads * head size).

    A query sees the last `window` tokens of its text, its own included.  Where tiles are few and
    texts long, `forward` shares the three steps below between threads, with equal results.
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
    """The slots that the queries of a tile see: the first (rounded down to the beginning of a page)
    and the end."""
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
    """Write the scores of slots `begin` to `end` for the queries of a tile into `scores`.

    begin, end: multiples of PAGE.  at: the row of `scores` that belongs to the first query.
    """
    first, count, head = plan.tiles[tile]
    row, stride = plan.rows[first // (heads.queries // heads.keys)], scores.shape[1]
    seen, unseen = span(heads, plan, tile, window)
    q_at = (head * queries.shape[1] + first) * heads.size
    last = min(end, unseen)
    for slot in range(max(begin, seen), last, PAGE):
        keys = keys_at(heads, cache, layer, row, slot // PAGE, head)
        if slot + 2 * PAGE <= unseen:  # `later` is fetched meanwhile: the next page of keys, even
            # if another thread computes its scores; after the last page, the first values
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
    """Turn the scores of one query into weights, in place, and write the inverse of their sum into
    the first spare column."""
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
    """Write columns `column` to `last` of the weighted averages for the queries of a tile.

    column, last: multiples of LANES.  at: the row of `scores` with the first query's weights.
    """
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
    """Move the scores of a branch right behind those of the text before it.

    Sums over keys then have the same order as for the same text without a tree.
    """
    for i in range(len(branch)):
        scores[before + i] = scores[branch[i]]


@compiled
def spread_out(scores: Floats, before: int, branch: Ints) -> None:
    """Undo `draw_together`: move the scores of a branch back to their slots, and leave zeros."""
    for i in range(len(branch) - 1, -1, -1):
        score = scores[before + i]
        scores[before + i] = np.float32(0)
        scores[branch[i]] = score


@compiled
def soften(scores: Floats, begin: int, visible: int, count: int, end: int) -> Any:
    """Replace the scores of keys `visible` to `count`, which a query sees, by 2**(score - largest),
    and those of all other keys from `begin` to `end` by zero.  Returns the sum."""
    top = largest(scores[visible:count], count - visible)
    for j in range(begin, visible):
        scores[j] = np.float32(0)
    for j in range(count, end):
        scores[j] = np.float32(0)
    return exp2_total(scores, visible, count, top)


@intrinsic
def exp2_total(context: Any, x: Any, begin: Any, end: Any, top: Any) -> Any:
    """Set x[i] = 2**(x[i] - top) for i from `begin` to `end`, and return the sum.

    top: not less than any of these numbers.  The order of the sum depends on the length alone:
    LANES sums side by side are added up one after the other, and then the numbers left over.
    """
    signature = types.float32(x, types.intp, types.intp, types.float32)

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        x, begin, end, top = values
        x = address(context, builder, signature.args[0], x, I64(0))
        tops = spread(builder, top)
        whole = builder.add(
            begin, builder.mul(builder.sdiv(builder.sub(end, begin), I64(LANES)), I64(LANES))
        )

        def many(index: Any, sums: list[Any]) -> list[Any]:
            place = builder.gep(x, [index])
            weights = _exp2(builder, builder.fsub(load(builder, F32, place), tops))
            builder.store(weights, builder.bitcast(place, vector(F32).as_pointer()), align=4)
            return [builder.fadd(sums[0], weights)]

        def one(index: Any, sums: list[Any]) -> list[Any]:
            place = builder.gep(x, [index])
            weight = _exp2(builder, builder.fsub(builder.load(place), top))
            builder.store(weight, place)
            return [builder.fadd(sums[0], weight)]

        zeros = ir.Constant(vector(F32), [0.0] * LANES)
        (sums,) = repeat_from(builder, begin, whole, LANES, [zeros], many)
        total = F32(0.0)
        for lane in range(LANES):
            total = builder.fadd(total, builder.extract_element(sums, I32(lane)))
        (total,) = repeat_from(builder, whole, end, 1, [total], one)
        return total

    return signature, generate


def _exp2(builder: Any, x: Any) -> Any:
    """2**x of a number or of a vector; x must not exceed 0.

    Neighbouring terms of the polynomial are joined first, and then the pairs.  A processor that
    adds a product onto a register must copy a constant there before; this way it copies fewer.
    """

    def constant(number: Any) -> Any:
        value = ir.Constant(F32, float(np.float32(number)))
        return value if x.type == F32 else spread(builder, value)

    def call(name: str, *arguments: Any) -> Any:
        suffix = "f32" if x.type == F32 else f"v{LANES}f32"
        kind = ir.FunctionType(x.type, [x.type] * len(arguments))
        function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.{name}.{suffix}")
        return builder.call(function, arguments)

    x = call("maxnum", x, constant(LOWEST))
    shifted = builder.fadd(x, constant(ROUND))
    r = builder.fsub(x, builder.fsub(shifted, constant(ROUND)))
    square = builder.fmul(r, r)
    p = constant(POWERS[-1])
    for low, high in reversed(list(zip(POWERS[:-1:2], POWERS[1::2], strict=True))):
        pair = call("fmuladd", constant(high), r, constant(low))
        p = call("fmuladd", p, square, pair)
    whole = I32 if x.type == F32 else vector(I32)
    bits = I32(23) if x.type == F32 else spread(builder, I32(23))
    power = builder.shl(builder.bitcast(shifted, whole), bits)
    return builder.bitcast(builder.add(builder.bitcast(p, whole), power), x.type)
