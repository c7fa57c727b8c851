"""Attention of one layer, the second of its five kernels (layers.py), in chunks of a fixed length.

A text that is longer has more chunks and not other ones, and they are added up in order by the
program that finishes last: a token's numbers are the same bits whatever shares its pass.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from forerun.gpu.kernels.layers import ONES

NOTHING = tl.constexpr(-1e30)
"""Less than any score."""


@triton.jit(do_not_specialize=["capacity", "width"])
def attend(
    q, keys, values, out, parts, stats, done, rows, slots, before, branches, segments, capacity,
    scale, width, H: tl.constexpr, KV: tl.constexpr, G: tl.constexpr, GP: tl.constexpr,
    HD: tl.constexpr, HP: tl.constexpr, MQ: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr,
    TREE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Averages (M, H * HD) of the values, one program per key head, chunk of keys and segment.

    segments: (segments, 2), first token and number of tokens, at most MQ, of one row.  A token
        sees the slots up to its own.  If TREE, a segment is one node: it sees the slots below
        `before`, then those listed in its row of `branches` (M, width), itself the last; `slots`
        is then the place of the node in its own branch, as if there were no other.
    parts, stats, done: what chunks hand to the program that adds them up.
    """
    head, chunk, segment = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    R: tl.constexpr = MQ * GP
    r = tl.arange(0, R)
    member, group = r // GP, r % GP
    d = tl.arange(0, HP)
    # these were written before the kernel that this one may overlap with began (dependent.py)
    first = tl.load(segments + 2 * segment, cache_modifier=".cg")
    count = tl.load(segments + 2 * segment + 1, cache_modifier=".cg")
    row = tl.load(rows + first, cache_modifier=".cg").to(tl.int64)
    place = tl.load(slots + first + member, mask=member < count, other=0, cache_modifier=".cg")
    last = slots + first + tl.maximum(count - 1, 0)
    seen = tl.load(last, cache_modifier=".cg") + 1  # by the last token
    num_chunks = (seen + CHUNK - 1) // CHUNK
    base = (row * KV + head) * capacity
    if TREE:
        trunk = tl.load(before + first, cache_modifier=".cg")
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    if (count == 0) | (chunk >= num_chunks):
        return
    there = ((member < count) & (group < G))[:, None] & (d < HD)[None, :]
    where = (first + member)[:, None] * (H * HD) + (head * G + group)[:, None] * HD + d[None, :]
    query = tl.load(q + where, mask=there, other=0.0)
    most = tl.full((R,), NOTHING, tl.float32)
    total = tl.zeros((R, ONES), tl.float32)
    mixed = tl.zeros((R, HP), tl.float32)
    ones = tl.full((BLOCK, ONES), 1.0, tl.float32).to(q.dtype.element_ty)
    for begin in range(chunk * CHUNK, tl.minimum((chunk + 1) * CHUNK, seen), BLOCK):
        t = begin + tl.arange(0, BLOCK)
        slot = t
        if TREE:
            branch = branches + first * width + t - trunk
            slot = tl.where(t < trunk, t, tl.load(branch, mask=(t >= trunk) & (t < seen), other=0))
        at = (base + slot)[:, None] * HD + d[None, :]
        inside = (t < seen)[:, None] & (d < HD)[None, :]
        key = tl.load(keys + at, mask=inside, other=0.0)
        visible = t[None, :] <= place[:, None]
        scores = tl.where(visible, tl.dot(query, tl.trans(key)) * scale, NOTHING)
        higher = tl.maximum(most, tl.max(scores, 1))
        weights = tl.where(visible, tl.exp(scores - higher[:, None]), 0.0)
        fade = tl.exp(most - higher)[:, None]
        value = tl.load(values + at, mask=inside, other=0.0)
        weights = weights.to(value.dtype)
        mixed = tl.dot(weights, value, mixed * fade)
        total = tl.dot(weights, ones, total * fade)
        most = higher
    if num_chunks == 1:
        result = mixed / tl.max(total, 1)[:, None]
        tl.store(out + where, result.to(out.dtype.element_ty), mask=there)
    else:
        chunks = tl.num_programs(1)
        mine = (segment * KV + head) * chunks
        part = (mine + chunk).to(tl.int64) * R + r
        tl.store(parts + part[:, None] * HP + d[None, :], mixed)
        tl.store(stats + part * 2, most)
        tl.store(stats + part * 2 + 1, tl.max(total, 1))
        tl.debug_barrier()  # the stores of every thread come before the count
        counter = done + segment * KV + head
        is_last = tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu") == num_chunks - 1
        tl.debug_barrier()
        if is_last:
            most = tl.full((R,), NOTHING, tl.float32)
            sums = tl.zeros((R,), tl.float32)
            mixed = tl.zeros((R, HP), tl.float32)
            for other in range(num_chunks):
                part = (mine + other).to(tl.int64) * R + r
                theirs = tl.load(stats + part * 2)
                higher = tl.maximum(most, theirs)
                fade, gain = tl.exp(most - higher), tl.exp(theirs - higher)
                values_of_part = tl.load(parts + part[:, None] * HP + d[None, :])
                mixed = mixed * fade[:, None] + values_of_part * gain[:, None]
                sums = sums * fade + tl.load(stats + part * 2 + 1) * gain
                most = higher
            result = mixed / sums[:, None]
            tl.store(out + where, result.to(out.dtype.element_ty), mask=there)
            tl.store(counter, 0)
