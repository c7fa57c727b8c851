"""Kernels between the passes of a captured round whose draft is a tree of a given shape.

Nodes are in level order, so that a tree cut at some height is its first nodes.  The target is fed a
*line* of each text: row 0 is its last token, row i + 1 node i.  Sizes: N nodes, height H, K the
hidden size of the drafting network, padded to KP.
"""

from __future__ import annotations

import triton
import triton.language as tl

from forerun.gpu.kernels.heads import join, kept
from forerun.gpu.kernels.lanes import known
from forerun.gpu.kernels.layers import page_of, place_in
from forerun.kernels.triton.arithmetic import (
    BLOCK,
    TARGET_BLOCK,
    block_minimum,
    inverse,
    lane_noise,
    words,
)
from forerun.kernels.triton.keys import LOWEST, noisy_key, token_of


@triton.jit(do_not_specialize=["N", "width"])
def tree_inputs(
    last, drafts, asked, lane_rows, stored, remaining, lengths, depths, paths, ids, rows, slots,
    positions, before, branches, segments, N, width, V: tl.constexpr, LINE: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """Write the inputs of the target's pass: the last token of each text and its tree; one program
    per lane.

    lengths: receives how many nodes count: those on the requested levels that the text has room for
    besides the extra token; 0 for unused lanes. depths: (N + 1,), of the rows of a line: 0 for the
    text. paths: (N + 1, width), the rows from the first node to this one; of the text, itself.
    """
    lane = tl.program_id(0)
    line = tl.arange(0, LINE)
    inside = line <= N
    room = tl.load(remaining + lane)
    row = tl.where(room > 0, tl.load(lane_rows + lane), -1)
    place = tl.load(stored + lane)
    height = tl.minimum(tl.load(asked + lane), tl.maximum(room - 1, 0))
    depth = tl.load(depths + line, mask=inside, other=0)
    counts = inside & (line > 0) & (depth <= height) & (row >= 0)
    tl.store(lengths + lane, tl.sum(counts.to(tl.int32), axis=0))
    token = tl.load(drafts + lane * N + line - 1, mask=inside & (line > 0), other=0)
    token = tl.where(line == 0, tl.load(last + lane), known(token, V))
    at = lane * (N + 1) + line
    tl.store(ids + at, token, mask=inside)
    tl.store(rows + at, row + line * 0, mask=inside)
    tl.store(slots + at, place + line, mask=inside)
    tl.store(positions + at, place + depth, mask=inside)
    tl.store(before + at, place + (line > 0).to(tl.int32), mask=inside)
    tl.store(segments + 2 * at, at, mask=inside)
    tl.store(segments + 2 * at + 1, (row >= 0).to(tl.int32) + line * 0, mask=inside)
    level = tl.arange(0, WIDE)
    there = inside[:, None] & (level < width)[None, :]
    path = tl.load(paths + line[:, None] * width + level[None, :], mask=there, other=0)
    tl.store(branches + at[:, None] * width + level[None, :], place + path, mask=there)


@triton.jit(do_not_specialize=["N", "width"])
def path_tokens(
    drafts, paths, depths, tokens, N, width, LINE: tl.constexpr, WIDE: tl.constexpr
):  # fmt: skip
    """Write the drafted tokens (lanes * (N + 1), width) on the path to each row of a line."""
    lane = tl.program_id(0)
    line, level = tl.arange(0, LINE), tl.arange(0, WIDE)
    depth = tl.load(depths + line, mask=line <= N, other=0)
    there = level[None, :] < depth[:, None]
    row = tl.load(paths + line[:, None] * width + level[None, :], mask=there, other=1)
    token = tl.load(drafts + lane * N + row - 1, mask=there, other=0)
    at = (lane * (N + 1) + line)[:, None] * width + level[None, :]
    tl.store(tokens + at, token, mask=(line <= N)[:, None] & (level < width)[None, :])


@triton.jit(do_not_specialize=["N", "height"])
def trace_path(reached, accepted, drafts, parents, nodes, line, N, height):
    """Write the accepted nodes of each lane and their tokens, both (lanes, height), from first to
    last.

    parents: (lanes, N), the node before each, -1 for the text.
    """
    lane = tl.program_id(0)
    node = tl.load(reached + lane) - 1
    count = tl.load(accepted + lane)
    for step in range(height):
        place = count - 1 - step
        there = (place >= 0) & (node >= 0)
        tl.store(nodes + lane * height + place, node, mask=there)
        token = tl.load(drafts + lane * N + node, mask=there, other=0)
        tl.store(line + lane * height + place, token, mask=there)
        node = tl.load(parents + lane * N + node, mask=there, other=-1)


@triton.jit(do_not_specialize=["num_pages", "width", "height"])
def move_path(
    keys, values, nodes, accepted, lane_rows, stored, remaining, pages, num_pages, width, height,
    PAGE: tl.constexpr, KV: tl.constexpr, HD: tl.constexpr, HP: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Move the keys and values (layers, num_pages, KV, PAGE, HD) of the accepted nodes to the end
    of the text; one program per lane, layer and key head."""
    lane, part = tl.program_id(0), tl.program_id(1)
    row = tl.load(lane_rows + lane)
    if (row >= 0) & (tl.load(remaining + lane) > 0):
        level, d = tl.arange(0, WIDE), tl.arange(0, HP)
        inside = level < tl.load(accepted + lane)
        node = tl.load(nodes + lane * height + level, mask=inside, other=0)
        layer, head = (part // KV).to(tl.int64) * num_pages, part % KV
        first = tl.load(stored + lane) + 1
        old, new = first + node, first + level
        page = layer + page_of(pages, width, row, old, inside, PAGE)
        begin, step = place_in(keys, page, head, old % PAGE, KV, HD, PAGE)
        old = begin[:, None] + (d * step)[None, :]
        page = layer + page_of(pages, width, row, new, inside, PAGE)
        begin, step = place_in(keys, page, head, new % PAGE, KV, HD, PAGE)
        new = begin[:, None] + (d * step)[None, :]
        there = inside[:, None] & (d < HD)[None, :]
        key = tl.load(keys + old, mask=there)
        value = tl.load(values + old, mask=there)
        tl.debug_barrier()  # all is read before anything is written
        tl.store(keys + new, key, mask=there)
        tl.store(values + new, value, mask=there)


@triton.jit(do_not_specialize=["N", "height", "width"])
def join_path(
    fused, accepted, extra, nodes, line, lane_rows, stored, remaining, embedding, norms, joined,
    rows, slots, positions, N, height, eps, features, pages, width, V: tl.constexpr,
    PAGE: tl.constexpr, K: tl.constexpr, KP: tl.constexpr,
):  # fmt: skip
    """After a round was decided, write the inputs (lanes * (height + 1), 2 K) of its entries, and
    store their features: first for the text's last token, then for the accepted nodes."""
    entry = tl.program_id(0)
    lane, place = entry // (height + 1), entry % (height + 1)
    k = tl.arange(0, KP)
    inside = k < K
    count = tl.load(accepted + lane)
    row = tl.load(lane_rows + lane)
    row = tl.where((tl.load(remaining + lane) > 0) & (place <= count), row, -1)
    slot = tl.load(stored + lane) + place
    tl.store(rows + entry, row)
    tl.store(slots + entry, slot)
    tl.store(positions + entry, slot)
    if row >= 0:
        node = tl.load(nodes + lane * height + place - 1, mask=place > 0, other=-1)
        token = tl.load(line + lane * height + place, mask=place < count, other=0)
        token = known(tl.where(place < count, token, tl.load(extra + lane)), V)
        feature = tl.load(fused + (lane * (N + 1) + node + 1) * K + k, mask=inside, other=0.0)
        where = kept(features, pages, width, row, slot, PAGE, K)
        tl.store(where + k, feature, mask=inside)
        join(feature.to(tl.float32), token, embedding, norms, joined + entry * 2 * K, eps, K, KP)


@triton.jit(do_not_specialize=["N", "num_nodes", "num_before", "depth", "width"])
def level_entry(
    drafts, lane_rows, stored, remaining, nodes, above, serials, x, embedding, norms, features,
    joined, rows, slots, positions, before, branches, segments, N, num_nodes, num_before, depth,
    width, eps, V: tl.constexpr, K: tl.constexpr, KP: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Write the entries for one level of a tree: one for each node that has children, in every
    lane.

    nodes, above: (num_nodes,), which nodes, and which of the entries of the level before precede
        them, whose outputs are x (lanes * num_before, K).
    serials: (num_nodes, width), the numbers of the entries from the first level to this one: where
        the keys of a node and its ancestors stand after those of the text.
    """
    entry = tl.program_id(0)
    lane, index = entry // num_nodes, entry % num_nodes
    k = tl.arange(0, KP)
    inside = k < K
    place = tl.load(stored + lane)
    row = tl.load(lane_rows + lane)
    row = tl.where((tl.load(remaining + lane) > 0) & (place > 0), row, -1)
    token = known(tl.load(drafts + lane * N + tl.load(nodes + index)), V)
    source = x + (lane * num_before + tl.load(above + index)) * K
    feature = tl.load(source + k, mask=inside, other=0.0)
    tl.store(features + entry * K + k, feature, mask=inside)
    join(feature.to(tl.float32), token, embedding, norms, joined + entry * 2 * K, eps, K, KP)
    level = tl.arange(0, WIDE)
    serial = tl.load(serials + index * width + level, mask=level <= depth, other=0)
    tl.store(branches + entry * width + level, place + serial, mask=level <= depth)
    tl.store(rows + entry, row)
    tl.store(slots + entry, place + tl.load(serials + index * width + depth))
    tl.store(positions + entry, place + depth)
    tl.store(before + entry, place)
    tl.store(segments + 2 * entry, entry)
    tl.store(segments + 2 * entry + 1, tl.where(row >= 0, 1, 0))


@triton.jit(do_not_specialize=["N", "num_nodes", "depth"])
def race_children(
    logits, columns, temperatures, seeds, outputs, firsts, counts, drafts, N, num_nodes, depth,
    MOST: tl.constexpr, VD: tl.constexpr, VP: tl.constexpr,
):  # fmt: skip
    """Choose the children of the nodes of a level: the tokens that arrive first in the target's
    race.

    logits: (lanes * num_nodes, VD); columns: (VD,), the target's id of each of them.
    outputs: (lanes,), position of the token after the text; children stand `depth` after it.
    firsts, counts: (num_nodes,), the first child of each node, and how many it has, up to MOST.
    """
    entry = tl.program_id(0)
    lane, index = entry // num_nodes, entry % num_nodes
    n = tl.arange(0, VP)
    values = tl.load(logits + entry * VD + n, mask=n < VD, other=float("-inf"))
    tokens = tl.load(columns + n, mask=n < VD, other=0)
    temperature, seed = tl.load(temperatures + lane), tl.load(seeds + lane)
    position = tl.load(outputs + lane) + depth
    drawn, fastest, _, _ = words(seed, position, tokens // BLOCK, TARGET_BLOCK)
    noise = lane_noise(seed, position, tokens, block_minimum(drawn), (fastest & 255).to(tl.int32))
    noise = tl.where(temperature == 0.0, 1.0, noise)
    keys = noisy_key(values, inverse(temperature), noise, tokens)
    child = drafts + lane * N + tl.load(firsts + index)
    count = tl.load(counts + index)
    for rank in range(MOST):
        best = tl.max(keys, axis=0)
        tl.store(child + rank, token_of(best).to(tl.int64), mask=rank < count)
        keys = tl.where(keys == best, LOWEST, keys)
