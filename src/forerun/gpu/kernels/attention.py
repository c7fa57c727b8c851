"""Attention of one layer, the second of its five kernels (layers.py), in chunks of a fixed length.

A longer text has additional chunks, but the first ones stay the same, and chunks are added up in
order. So a token's numbers have the same bits whatever shares its pass. Few chunks are added up by
the program that finishes last, many by `add_chunks`, whose programs share the columns.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from forerun.gpu.kernels.layers import ONES, capped, page_of

NOTHING = tl.constexpr(-1e30)
"""A number less than any score."""


@triton.jit
def _add_block(
    query, key, value, visible, ones, scale, cap, most, total, mixed, CAPPED: tl.constexpr
):  # fmt: skip
    """Add a block of keys to the running results of a chunk, and return them: the largest score
    (R,), the sum of the weights (R, ONES), and the weighted sum of the values (R, HP). Both sums
    are relative to the largest score."""
    scores = tl.dot(query, tl.trans(key)) * scale
    if CAPPED:
        scores = capped(scores, cap)
    scores = tl.where(visible, scores, NOTHING)
    higher = tl.maximum(most, tl.max(scores, 1))
    weights = tl.where(visible, tl.exp(scores - higher[:, None]), 0.0).to(value.dtype)
    fade = tl.exp(most - higher)[:, None]
    mixed = tl.dot(weights, value, mixed * fade)
    total = tl.dot(weights, ones, total * fade)
    return higher, total, mixed


@triton.jit
def _add_chunk(most, sums, mixed, chunk_most, chunk_sums, chunk_mixed):
    """Merge the results of a chunk into those of the chunks before it; `sums` are (R,) here."""
    higher = tl.maximum(most, chunk_most)
    fade, gain = tl.exp(most - higher), tl.exp(chunk_most - higher)
    mixed = mixed * fade[:, None] + chunk_mixed * gain[:, None]
    return higher, sums * fade + chunk_sums * gain, mixed


@triton.jit
def _averages(most, sums, mixed, sinks, heads, inside, SINKS: tl.constexpr):
    """The averages (R, HP) of the values. If SINKS, each head's sink adds a score without a
    value."""
    if SINKS:
        sink = tl.load(sinks + heads, mask=inside, other=0.0).to(tl.float32)
        most, sums, mixed = _add_chunk(most, sums, mixed, sink, 1.0, tl.zeros_like(mixed))
    return mixed / sums[:, None]


@triton.jit
def _widened(words, shift, like, BITS: tl.constexpr):
    """Convert stored keys or values to the dtype of the pointer `like`. If they have 8 bits (e4m3),
    each is taken from bit `shift` of its word; `shift` is a constant or (T, 1)."""
    if BITS == 16:
        made = words
    else:
        bits = words.to(tl.int32) >> shift
        bits = ((bits & 0x80) << 24) | ((bits & 0x7F) << 20)
        made = (bits.to(tl.float32, bitcast=True) * 1.329227995784916e36).to(like.dtype.element_ty)
    return made


@triton.jit
def _add_keys(
    query, q, keys, values, base, begin, seen, place, window, trunk, branch, pages, row_pages, row,
    head, d, scale, cap, most, total, mixed, KV: tl.constexpr, CHUNK: tl.constexpr,
    HD: tl.constexpr, BLOCK: tl.constexpr, CAPPED: tl.constexpr, WINDOW: tl.constexpr,
    TREE: tl.constexpr,
):  # fmt: skip
    """Add the keys from place `begin` of the text on to a chunk: one block, or with 8 bits the two
    blocks that share the same words, which are loaded once.

    base: the address of the page in words, used for places that lie in it one after another. If
    TREE, the branch lists the slots of the keys from place `trunk` on, which may be outside the
    page.
    """
    BITS: tl.constexpr = keys.dtype.element_ty.primitive_bitwidth
    PER: tl.constexpr = 16 // BITS
    ROWS: tl.constexpr = CHUNK // PER
    ones = tl.full((BLOCK, ONES), 1.0, tl.float32).to(q.dtype.element_ty)
    if PER > 1:
        keys = keys.to(tl.pointer_type(tl.int16))
        values = values.to(tl.pointer_type(tl.int16))
    for part in tl.static_range(PER):
        t = begin + part * BLOCK + tl.arange(0, BLOCK)
        inside = (t < seen)[:, None] & (d < HD)[None, :]
        shift = part * BITS
        if TREE:
            listed = tl.load(branch + t - trunk, mask=(t >= trunk) & (t < seen), other=0)
            slot = tl.where(t < trunk, t, listed)
            page = page_of(pages, row_pages, row, slot, t < seen, CHUNK)
            at = (page * KV + head) * ROWS + slot % ROWS
            shift = (slot % CHUNK // ROWS * BITS)[:, None]
        else:
            at = base + t % ROWS
        if TREE or part == 0:
            key = tl.load(keys + at[:, None] * HD + d[None, :], mask=inside, other=0)
            value = tl.load(values + at[:, None] * HD + d[None, :], mask=inside, other=0)
        visible = t[None, :] <= place[:, None]
        if WINDOW:
            visible = visible & (t[None, :] > place[:, None] - window)
        most, total, mixed = _add_block(
            query, _widened(key, shift, q, BITS), _widened(value, shift, q, BITS), visible, ones,
            scale, cap, most, total, mixed, CAPPED,
        )  # fmt: skip
    return most, total, mixed


@triton.jit(do_not_specialize=["row_pages", "width", "window"])
def attend(
    q, keys, values, out, parts, stats, done, rows, slots, before, branches, segments, sinks,
    pages, row_pages, scale, cap, width, window, H: tl.constexpr, KV: tl.constexpr, G: tl.constexpr,
    GP: tl.constexpr, HD: tl.constexpr, HP: tl.constexpr, MQ: tl.constexpr, CHUNK: tl.constexpr,
    BLOCK: tl.constexpr, SINKS: tl.constexpr, CAPPED: tl.constexpr, WINDOW: tl.constexpr,
    TREE: tl.constexpr, ADDS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Compute the weighted averages (M, H * HD) of the values, with one program per key head, chunk
    of keys and segment. Unless ADDS, this completes only segments that have one chunk.

    A token sees `window` keys if WINDOW; the chunks are those that some token of a segment sees.

    segments: (segments, 2), the first token and the number of tokens (at most MQ) of each segment,
        which lies in one row.  A token sees the slots up to its own.  If TREE, a segment is one
        node: it sees the slots below `before`, then those listed in its row of `branches`
        (M, width), itself the last; `slots` is then the place of the node in its own branch, as if
        there were no other.
    pages: (rows, row_pages), of CHUNK slots.
    parts, stats, done: the results of chunks, for the program that adds them up: sums (rows, HP) of
        values, largest scores and sums of weights (rows, 2), and how many chunks are done.  Rows
        are R = MQ * GP of each segment, key head and chunk.
    """
    head, chunk, segment = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    R: tl.constexpr = MQ * GP
    r = tl.arange(0, R)
    member, group = r // GP, r % GP
    d = tl.arange(0, HP)
    # these were written before the kernel that this one may overlap with began (early_launch.py)
    first = tl.load(segments + 2 * segment, cache_modifier=".cg")
    count = tl.load(segments + 2 * segment + 1, cache_modifier=".cg")
    row = tl.load(rows + first, cache_modifier=".cg")
    place = tl.load(slots + first + member, mask=member < count, other=0, cache_modifier=".cg")
    last = slots + first + tl.maximum(count - 1, 0)
    seen = tl.load(last, cache_modifier=".cg") + 1  # by the last token
    num_chunks = (seen + CHUNK - 1) // CHUNK
    begins = 0
    if WINDOW:
        earliest = tl.load(slots + first, cache_modifier=".cg")
        begins = tl.maximum(earliest - window + 1, 0) // CHUNK
        num_chunks -= begins
    start = (begins + chunk) * CHUNK
    has_page = (row >= 0) & (begins + chunk < row_pages)
    PER: tl.constexpr = 16 // keys.dtype.element_ty.primitive_bitwidth
    base = (page_of(pages, row_pages, row, start, has_page, CHUNK) * KV + head) * (CHUNK // PER)
    trunk = 0
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
    for begin in range(start, tl.minimum(start + CHUNK, seen), BLOCK * PER):
        most, total, mixed = _add_keys(
            query, q, keys, values, base, begin, seen, place, window, trunk,
            branches + first * width, pages, row_pages, row, head, d, scale, cap, most, total,
            mixed, KV, CHUNK, HD, BLOCK, CAPPED, WINDOW, TREE,
        )  # fmt: skip
    heads = head * G + group
    if num_chunks == 1:
        result = _averages(most, tl.max(total, 1), mixed, sinks, heads, group < G, SINKS)
        tl.store(out + where, result.to(out.dtype.element_ty), mask=there)
    else:
        chunks = tl.num_programs(1)
        mine = (segment * KV + head) * chunks
        part = (mine + chunk).to(tl.int64) * R + r
        tl.store(parts + part[:, None] * HP + d[None, :], mixed, mask=there)
        tl.store(stats + part * 2, most)
        tl.store(stats + part * 2 + 1, tl.max(total, 1))
        if ADDS:
            tl.debug_barrier()  # the stores of every thread come before the count
            counter = done + segment * KV + head
            is_last = tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu") == num_chunks - 1
            tl.debug_barrier()
            if is_last:
                # chunks that are read ahead
                AHEAD: tl.constexpr = 8 if R * HP <= 2048 else (4 if R * HP <= 4096 else 2)
                most = tl.full((R,), NOTHING, tl.float32)
                sums = tl.zeros((R,), tl.float32)
                mixed = tl.zeros((R, HP), tl.float32)
                for other in tl.range(num_chunks, num_stages=AHEAD):
                    part = (mine + other).to(tl.int64) * R + r
                    theirs = tl.load(stats + part * 2)
                    their_sums = tl.load(stats + part * 2 + 1)
                    where_mixed = part[:, None] * HP + d[None, :]
                    their_mixed = tl.load(parts + where_mixed, mask=there, other=0.0)
                    most, sums, mixed = _add_chunk(
                        most, sums, mixed, theirs, their_sums, their_mixed
                    )
                result = _averages(most, sums, mixed, sinks, heads, group < G, SINKS)
                tl.store(out + where, result.to(out.dtype.element_ty), mask=there)
                tl.store(counter, 0)


@triton.jit
def _stored_chunks(parts, stats, COUNT: tl.constexpr, ROWS: tl.constexpr, HP: tl.constexpr):
    """Load the results of COUNT chunks, which are ROWS rows apart: the largest score, the sum of
    weights and the sum of values of each, all (COLUMNS,)."""
    found = ()
    for step in tl.static_range(COUNT):
        row = stats + step * (2 * ROWS)
        chunk = (tl.load(row), tl.load(row + 1), tl.load(parts + step * (ROWS * HP)))
        found = found + (chunk,)  # type: ignore[assignment]  # noqa: RUF005 - in Triton's language
    return found


@triton.jit
def _add_column(most, sums, mixed, chunk_most, chunk_sums, chunk_mixed):
    """Add a chunk to those before it, as `_add_chunk` does. All numbers are (COLUMNS,), one for
    each thread, so that no thread waits for another."""
    higher = tl.maximum(most, chunk_most)
    fade, gain = tl.exp(most - higher), tl.exp(chunk_most - higher)
    mixed = mixed * fade + chunk_mixed * gain
    return higher, sums * fade + chunk_sums * gain, mixed


@triton.jit(do_not_specialize=["chunks", "window"])
def add_chunks(
    parts, stats, out, slots, segments, sinks, chunks, window, H: tl.constexpr, KV: tl.constexpr,
    G: tl.constexpr, GP: tl.constexpr, HD: tl.constexpr, HP: tl.constexpr, MQ: tl.constexpr,
    CHUNK: tl.constexpr, COLUMNS: tl.constexpr, AHEAD: tl.constexpr, SINKS: tl.constexpr,
    WINDOW: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Compute the averages (M, H * HD) of the values for segments of several chunks, from the
    results that `attend` has stored. There is one program per segment, token of a segment, and
    COLUMNS of the GP * HP columns of a key head.

    chunks: the number of chunks that there is room for.
    AHEAD: the number of chunks that are loaded at the same time.
    """
    SLICES: tl.constexpr = GP * HP // COLUMNS
    head, member, segment = tl.program_id(0) // SLICES, tl.program_id(1), tl.program_id(2)
    column = tl.program_id(0) % SLICES * COLUMNS + tl.arange(0, COLUMNS)
    group, d = column // HP, column % HP
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    first = tl.load(segments + 2 * segment)
    count = tl.load(segments + 2 * segment + 1)
    if member >= count:
        return
    num_chunks = tl.load(slots + first + count - 1) // CHUNK + 1
    if WINDOW:
        num_chunks -= tl.maximum(tl.load(slots + first) - window + 1, 0) // CHUNK
    if num_chunks == 1:
        return
    ROWS: tl.constexpr = MQ * GP
    at = ((segment * KV + head) * chunks).to(tl.int64) * ROWS + member * GP
    parts += at * HP + column
    stats += (at + group) * 2
    most = tl.full((COLUMNS,), NOTHING, tl.float32)
    sums = tl.zeros((COLUMNS,), tl.float32)
    mixed = tl.zeros((COLUMNS,), tl.float32)
    groups = num_chunks // AHEAD
    found = _stored_chunks(parts, stats, AHEAD, ROWS, HP)
    for number in range(1, groups + 1):  # while the next are on their way
        further = tl.where(number < groups, AHEAD * ROWS, 0)
        parts += further * HP
        stats += further * 2
        later = _stored_chunks(parts, stats, AHEAD, ROWS, HP)
        for step in tl.static_range(AHEAD):
            most, sums, mixed = _add_column(most, sums, mixed, *found[step])
        found = later
    for step in range(groups * AHEAD, num_chunks):
        row = (step - tl.maximum(groups - 1, 0) * AHEAD) * ROWS
        chunk = _stored_chunks(parts + row * HP, stats + row * 2, 1, ROWS, HP)
        most, sums, mixed = _add_column(most, sums, mixed, *chunk[0])
    heads, inside = head * G + group, (group < G) & (d < HD)
    if SINKS:
        sink = tl.load(sinks + heads, mask=inside, other=0.0).to(tl.float32)
        most, sums, mixed = _add_column(most, sums, mixed, sink, 1.0, 0.0)
    where = (first + member) * (H * HD) + heads * HD + d
    tl.store(out + where, (mixed / sums).to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["row_pages", "width", "window"])
def attend_whole(
    q, keys, values, out, rows, slots, before, branches, segments, sinks, pages, row_pages, scale,
    cap, width, window, H: tl.constexpr, KV: tl.constexpr, G: tl.constexpr, GP: tl.constexpr,
    HD: tl.constexpr, HP: tl.constexpr, MQ: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr,
    SINKS: tl.constexpr, CAPPED: tl.constexpr, WINDOW: tl.constexpr, TREE: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Compute the same averages as `attend`, but with one program per key head and segment, which
    adds up all chunks itself. This is for passes with many segments, which fill the device without
    being cut. The last segments come first, because they have the longest texts when a prompt is
    read."""
    head, segment = tl.program_id(0), tl.num_programs(1) - 1 - tl.program_id(1)
    R: tl.constexpr = MQ * GP
    r = tl.arange(0, R)
    member, group = r // GP, r % GP
    d = tl.arange(0, HP)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    first = tl.load(segments + 2 * segment)
    count = tl.load(segments + 2 * segment + 1)
    if count == 0:
        return
    row = tl.load(rows + first)
    place = tl.load(slots + first + member, mask=member < count, other=0)
    seen = tl.load(slots + first + count - 1) + 1  # by the last token
    there = ((member < count) & (group < G))[:, None] & (d < HD)[None, :]
    where = (first + member)[:, None] * (H * HD) + (head * G + group)[:, None] * HD + d[None, :]
    query = tl.load(q + where, mask=there, other=0.0)
    most = tl.full((R,), NOTHING, tl.float32)
    sums = tl.zeros((R,), tl.float32)
    mixed = tl.zeros((R, HP), tl.float32)
    PER: tl.constexpr = 16 // keys.dtype.element_ty.primitive_bitwidth
    start = 0
    if WINDOW:
        start = tl.maximum(tl.load(slots + first) - window + 1, 0) // CHUNK * CHUNK
    trunk = 0
    if TREE:
        trunk = tl.load(before + first)
    page = page_of(pages, row_pages, row, start, True, CHUNK)
    for begin in range(start, seen, CHUNK):
        base, after = (page * KV + head) * (CHUNK // PER), begin + CHUNK
        page = page_of(pages, row_pages, row, after, after < seen, CHUNK)  # asked for early
        chunk_most = tl.full((R,), NOTHING, tl.float32)
        total = tl.zeros((R, ONES), tl.float32)
        part = tl.zeros((R, HP), tl.float32)
        for block in range(begin, tl.minimum(after, seen), BLOCK * PER):
            chunk_most, total, part = _add_keys(
                query, q, keys, values, base, block, seen, place, window, trunk,
                branches + first * width, pages, row_pages, row, head, d, scale, cap, chunk_most,
                total, part, KV, CHUNK, HD, BLOCK, CAPPED, WINDOW, TREE,
            )  # fmt: skip
        most, sums, mixed = _add_chunk(most, sums, mixed, chunk_most, tl.max(total, 1), part)
    result = _averages(most, sums, mixed, sinks, head * G + group, group < G, SINKS)
    tl.store(out + where, result.to(out.dtype.element_ty), mask=there)
