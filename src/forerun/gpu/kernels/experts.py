"""Kernels of a layer with experts: the choice of experts for each token, and products over the
tokens of each expert.

A *pair* is a token and one of its TOP experts; pair p belongs to token p // TOP. Pairs of one
expert stand together in tiles of MP places, so that its weights are read once; a pass has as many
programs as any choice may need, and the programs of unused tiles end at once. A row's numbers do
not depend on its tile, and a token adds up its experts in the order of their scores, so its bits
are the same whatever shares an expert.

The matrices of experts stand one below another in one, packed or not (FORMAT: see products.py).

Sizes: E experts, padded to EP; inner size D; the others are those of layers.py.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from forerun.gpu.kernels.layers import activated, inverse_rms
from forerun.gpu.kernels.products import products, tile_products

BLOCK = tl.constexpr(64)
"""The number of pairs that are put into tiles at once."""


@triton.jit
def _choose(
    scores, chosen, weights, m, is_text, keep, E: tl.constexpr, EP: tl.constexpr,
    TOP: tl.constexpr, TP: tl.constexpr, MP: tl.constexpr, NORMED: tl.constexpr,
):  # fmt: skip
    """Choose the experts (M, TOP) of tokens m (MP,), the best first and among equal ones the lowest
    number, and their weights; -1 for padding. scores: (M, E)."""
    e, place = tl.arange(0, EP), tl.arange(0, TP)
    there = keep[:, None] & (e < E)[None, :]
    found = tl.load(scores + m[:, None] * E + e[None, :], mask=there, other=-float("inf"))
    left = found
    picked = tl.full((MP, TP), -float("inf"), tl.float32)
    for i in range(TOP):
        best = tl.max(left, 1)
        expert = tl.min(tl.where(left == best[:, None], e[None, :], E - 1), 1)
        tl.store(chosen + m * TOP + i, tl.where(is_text, expert, -1), mask=keep)
        picked = tl.where(place[None, :] == i, best[:, None], picked)
        left = tl.where(e[None, :] == expert[:, None], -float("inf"), left)
    most = tl.max(picked, 1)[:, None]
    raised = tl.exp(picked - most)
    total = tl.sum(raised if NORMED else tl.exp(found - most), 1)[:, None]
    where = weights + m[:, None] * TOP + place[None, :]
    tl.store(where, raised / total, mask=keep[:, None] & (place < TOP)[None, :])


@triton.jit
def _arrange(
    chosen, order, experts, num_pairs, num_tiles, EP: tl.constexpr, MP: tl.constexpr
):  # fmt: skip
    """Assign pairs to the places of tiles. Writes the pair in each place (num_tiles * MP,), or -1,
    and the expert of each tile, or -1."""
    e, lane = tl.arange(0, EP), tl.arange(0, BLOCK)
    counts = tl.zeros((EP,), tl.int32)
    for begin in range(0, num_pairs, BLOCK):
        pair = begin + lane
        expert = tl.load(chosen + pair, mask=pair < num_pairs, other=-1)
        counts += tl.sum((expert[:, None] == e[None, :]).to(tl.int32), 0)
    tiles = (counts + MP - 1) // MP
    ends = tl.cumsum(tiles, 0)
    first = ends - tiles
    for begin in range(0, num_tiles, BLOCK):
        tile = begin + lane
        is_of = (tile[:, None] >= first[None, :]) & (tile[:, None] < ends[None, :])
        owner = tl.sum(tl.where(is_of, e[None, :] + 1, 0), 1) - 1
        tl.store(experts + tile, owner, mask=tile < num_tiles)
    for begin in range(0, num_tiles * MP, BLOCK):
        tl.store(order + begin + lane, -1, mask=begin + lane < num_tiles * MP)
    tl.debug_barrier()  # -1 comes before what takes its place
    used = first * MP
    for begin in range(0, num_pairs, BLOCK):
        pair = begin + lane
        expert = tl.load(chosen + pair, mask=pair < num_pairs, other=-1)
        is_of = (expert[:, None] == e[None, :]).to(tl.int32)
        before = tl.cumsum(is_of, 0) - is_of  # pairs of this block that come first
        place = tl.sum(is_of * (used[None, :] + before), 1)
        tl.store(order + place, pair, mask=expert >= 0)
        used += tl.sum(is_of, 0)


@triton.jit(do_not_specialize=["M", "num_tiles"])
def route(
    x, squares, w, bias, rows, scores, chosen, weights, order, experts, done, M, num_tiles, eps,
    K: tl.constexpr, P: tl.constexpr, E: tl.constexpr, EP: tl.constexpr, TOP: tl.constexpr,
    TP: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, MP: tl.constexpr, TILE: tl.constexpr,
    BIAS: tl.constexpr, NORMED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Compute the experts of every token, their weights, and the tiles (of TILE pairs) of the
    products.

    Each program computes the router's scores of MP tokens and BN experts. The program that finishes
    last for its tokens chooses their experts, and the one that finishes last of all arranges the
    tiles. MP is the same in every pass. done: (1 + tiles of tokens,), counters that are zero before
    and after each launch.
    """
    row, begin = tl.program_id(0), tl.program_id(1) * BN
    m, e = row * MP + tl.arange(0, MP), begin + tl.arange(0, BN)
    keep, inside = m < M, e < E
    a, _ = products(
        x, m, keep, w + begin * K, w, inside, K, BK, MP, BN, False, E % BN != 0, PDL
    )  # fmt: skip
    a *= inverse_rms(squares, m, keep, eps, K, P, MP)[:, None]
    if BIAS:
        a += tl.load(bias + e, mask=inside, other=0.0).to(tl.float32)[None, :]
    tl.store(scores + m[:, None] * E + e[None, :], a, mask=keep[:, None] & inside[None, :])
    tl.debug_barrier()  # the stores of every thread come before the count
    count = tl.atomic_add(done + 1 + row, 1, sem="acq_rel", scope="gpu")
    tl.debug_barrier()
    if count == tl.num_programs(1) - 1:
        is_text = tl.load(rows + m, mask=keep, other=-1) >= 0
        _choose(scores, chosen, weights, m, is_text, keep, E, EP, TOP, TP, MP, NORMED)
        tl.store(done + 1 + row, 0)
        tl.debug_barrier()
        ended = tl.atomic_add(done, 1, sem="acq_rel", scope="gpu")
        tl.debug_barrier()
        if ended == tl.num_programs(0) - 1:
            _arrange(chosen, order, experts, M * TOP, num_tiles, EP, TILE)
            tl.store(done, 0)


@triton.jit
def open_experts(
    x, squares, w, bias, order, experts, y, eps, alpha, limit, K: tl.constexpr, P: tl.constexpr,
    D: tl.constexpr, TOP: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, MP: tl.constexpr,
    BIAS: tl.constexpr, KIND: tl.constexpr, TURNS: tl.constexpr, FORMAT: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Compute y (pairs, D), the activated products (gate and up) of the normalised x with each
    pair's expert in w (E * 2 D, K).

    TURNS: whether rows of gate and up alternate in w; if not, all rows of gate come before all rows
    of up.
    """
    tile, column = tl.program_id(0), tl.program_id(1) * BN
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    expert = tl.load(experts + tile)
    if expert < 0:
        return
    pair = tl.load(order + tile * MP + tl.arange(0, MP))
    keep, n = pair >= 0, column + tl.arange(0, BN)
    token, inside = tl.where(keep, pair // TOP, 0), n < D
    first = expert * 2 * D + (2 * column if TURNS else column)
    if TURNS:
        both = 2 * column + tl.arange(0, 2 * BN)
        a, _ = tile_products(
            x, 0, token, keep, w, first, first, both < 2 * D, K, BK, MP, 2 * BN, False,
            D % BN != 0, False, FORMAT, False,
        )  # fmt: skip
        gate, up = tl.split(tl.reshape(a, (MP, BN, 2)))
    else:
        gate, up = tile_products(
            x, 0, token, keep, w, first, first + D, inside, K, BK, MP, BN, True, D % BN != 0,
            False, FORMAT, False,
        )  # fmt: skip
    scale = inverse_rms(squares, token, keep, eps, K, P, MP)[:, None]
    gate *= scale
    up *= scale
    if BIAS:
        at = bias + expert * 2 * D + (2 * n if TURNS else n)
        second: tl.constexpr = 1 if TURNS else D
        gate += tl.load(at, mask=inside, other=0.0).to(tl.float32)[None, :]
        up += tl.load(at + second, mask=inside, other=0.0).to(tl.float32)[None, :]
    result = activated(gate, up, alpha, limit, KIND).to(y.dtype.element_ty)
    where = y + pair[:, None].to(tl.int64) * D + n[None, :]
    tl.store(where, result, mask=keep[:, None] & inside[None, :])


@triton.jit
def close_experts(
    x, w, bias, order, experts, y, N: tl.constexpr, D: tl.constexpr, BN: tl.constexpr,
    BK: tl.constexpr, MP: tl.constexpr, BIAS: tl.constexpr, FORMAT: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Compute y (pairs, N), the products of x (pairs, D) with each pair's expert in w (E * N,
    D)."""
    tile, column = tl.program_id(0), tl.program_id(1) * BN
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    expert = tl.load(experts + tile)
    if expert < 0:
        return
    pair = tl.load(order + tile * MP + tl.arange(0, MP))
    keep, n = pair >= 0, column + tl.arange(0, BN)
    at, inside = tl.where(keep, pair, 0).to(tl.int64), n < N
    first = expert * N + column
    a, _ = tile_products(
        x, 0, at, keep, w, first, first, inside, D, BK, MP, BN, False, N % BN != 0, False, FORMAT,
        False,
    )  # fmt: skip
    if BIAS:
        a += tl.load(bias + expert * N + n, mask=inside, other=0.0).to(tl.float32)[None, :]
    where = y + at[:, None] * N + n[None, :]
    tl.store(where, a.to(y.dtype.element_ty), mask=keep[:, None] & inside[None, :])
