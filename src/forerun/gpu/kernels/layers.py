"""The layers of a model in five Triton kernels, four of them here; some models need more.

**A token's numbers are the same bits whatever shares its pass.**  Every sum over a long axis is a
chain of tensor-core products in the order of that axis, which gives a row the same bits whatever
the size of the tile, and no sum is split by a number that depends on the pass.  Sums that would
otherwise be reductions over threads, whose order follows the layout of a tile (the squares of a
norm, the weights of attention), are products with a column of ones.  Attention is cut into chunks
of a fixed length, which are added up in order.

A norm is applied as a scale after the product. The kernel that computes queries, keys and values
also rotates them and writes the cache; the other products end with the activation or the residual
sum. Where a norm follows a product, or all heads are normed together, one more kernel sees whole
rows. Differences between models are switches with which a kernel is compiled; no kernel knows a
model's name.

Programs are numbered by tiles of MP tokens, then by tiles of weights, so that those which share
weights run together.  Sizes: M tokens in a pass; hidden size K; H query heads, KV key heads,
G = H / KV; head size HD.  A token whose row is negative is padding.
"""

from __future__ import annotations

import triton
import triton.language as tl

from forerun.gpu.kernels.products import tile_products

ONES = tl.constexpr(16)
"""The number of columns of ones in products that compute sums; a product cannot have fewer."""
PARTIAL = tl.constexpr(16)
"""The number of columns whose squares are summed at once, for a norm. Changing it changes the last
bits of results."""


@triton.jit
def exact_dot(values, ones, total):
    """Return total + values @ ones. Each float32 value is split into two bfloat16 numbers."""
    high = values.to(tl.bfloat16)
    low = (values - high.to(tl.float32)).to(tl.bfloat16)
    return tl.dot(low, ones, tl.dot(high, ones, total))


@triton.jit
def inverse_rms(squares, at, keep, eps, K: tl.constexpr, P: tl.constexpr, MP: tl.constexpr):
    """Return 1 / sqrt(mean of squares + eps) for each row (MP,), from its P partial sums in
    `squares` (·, P). If P is 0, no norm comes before the product, and the result is 1."""
    scale = tl.full((MP,), 1.0, tl.float32)
    if P > 0:
        ones = tl.full((64, ONES), 1.0, tl.float32).to(tl.bfloat16)
        total = tl.zeros((MP, ONES), tl.float32)
        for begin in range(0, P, 64):
            part = begin + tl.arange(0, 64)
            there = keep[:, None] & (part < P)[None, :]
            sums = tl.load(squares + at[:, None] * P + part[None, :], mask=there, other=0.0)
            total = exact_dot(sums, ones, total)
        scale = tl.rsqrt(tl.max(total, 1) / K + eps)
    return scale


@triton.jit
def capped(values, cap):
    """cap * tanh(values / cap)."""
    return cap - 2 * cap / (1 + tl.exp(2 * values / cap))


@triton.jit(do_not_specialize=["M"])
def add_product(
    x, w, bias, residual, norm, y, normed, squares, gain, M, N, UNIT: tl.constexpr,
    K: tl.constexpr, P: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, MP: tl.constexpr,
    MASKED: tl.constexpr, BIAS: tl.constexpr, ADD: tl.constexpr, NORM: tl.constexpr,
    BULK: tl.constexpr, FORMAT: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Compute y (M, N) = residual + gain * (x (M, K) @ w (N, K).T + bias); the residual is added
    only if ADD. If NORM, also write what the following norm needs: y times the norm's weights, and
    sums (M, P) of the squares of PARTIAL columns each.

    residual: must not be written by the previous kernel, which is not waited for here
    (early_launch.py).
    """
    row, column = tl.program_id(0) * MP, tl.program_id(1) * BN
    n = column + tl.arange(0, BN)
    m = row + tl.arange(0, MP)
    keep, inside = m < M, n < N
    where = m[:, None] * N + n[None, :]
    there = keep[:, None] & inside[None, :]
    if NORM:
        scale = tl.load(norm + n, mask=inside, other=0.0).to(tl.float32) + UNIT
    if ADD and not BULK:
        before = tl.load(residual + where, mask=there, other=0.0, cache_modifier=".cg")
    a, _ = tile_products(
        x, row, m, keep, w, column, column, inside, K, BK, MP, BN, False, MASKED, BULK, FORMAT, PDL
    )
    if ADD and BULK:
        before = tl.load(residual + where, mask=there, other=0.0)
    if BIAS:
        a += tl.load(bias + n, mask=inside, other=0.0).to(tl.float32)[None, :]
    if ADD:
        a = before.to(tl.float32) + a * gain
    rounded = a.to(y.dtype.element_ty)
    tl.store(y + where, rounded, mask=there)
    if NORM:
        a = rounded.to(tl.float32)
        tl.store(normed + where, (a * scale[None, :]).to(y.dtype.element_ty), mask=there)
        part = tl.arange(0, ONES)
        member = (tl.arange(0, BN) // PARTIAL)[:, None] == part[None, :]
        zeros = tl.zeros((MP, ONES), tl.float32)
        sums = exact_dot(a * a, member.to(tl.float32).to(tl.bfloat16), zeros)
        place = tl.program_id(1) * (BN // PARTIAL) + part
        there = keep[:, None] & ((part < BN // PARTIAL) & (place < P))[None, :]
        tl.store(squares + m[:, None] * P + place[None, :], sums, mask=there)


@triton.jit(do_not_specialize=["M"])
def head(
    x, squares, w, y, picked, columns, M, N, width, eps, gain, cap, K: tl.constexpr,
    P: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, MP: tl.constexpr, MASKED: tl.constexpr,
    MAPPED: tl.constexpr, CAPPED: tl.constexpr, FORMAT: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Compute the logits y (M, width) of the picked rows of x, after normalising these. If MAPPED,
    `columns` (N,) gives the column of y that each row of w fills."""
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    m = tl.program_id(0) * MP + tl.arange(0, MP)
    keep, inside = m < M, n < N
    at = tl.load(picked + m, mask=keep, other=0, cache_modifier=".cg")
    first = tl.program_id(1) * BN
    a, _ = tile_products(
        x, 0, at, keep, w, first, first, inside, K, BK, MP, BN, False, MASKED, False, FORMAT, PDL
    )
    a = a * inverse_rms(squares, at, keep, eps, K, P, MP)[:, None] * gain
    if CAPPED:
        a = capped(a, cap)
    column = tl.load(columns + n, mask=inside, other=0) if MAPPED else n
    where = m[:, None].to(tl.int64) * width + column[None, :]
    tl.store(y + where, a.to(y.dtype.element_ty), mask=keep[:, None] & inside[None, :])


@triton.jit
def activated(gate, up, alpha, limit, KIND: tl.constexpr):
    """Return the activated product of gate and up. "silu": silu(gate) * up; "gelu": GELU in its
    form with tanh instead of silu; "clamped": gate and up are first limited to `limit`, alpha
    scales the argument of the sigmoid, and up becomes up + 1."""
    inner = gate
    if KIND == "gelu":  # 2 sqrt(2 / pi) (gate + 0.044715 gate^3)
        inner = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
    if KIND == "clamped":
        gate = tl.minimum(gate, limit)
        up = tl.minimum(tl.maximum(up, -limit), limit) + 1
        inner = alpha * gate
    return gate * tl.sigmoid(inner) * up


@triton.jit(do_not_specialize=["M"])
def gate_up(
    x, squares, w, bias, y, M, N, eps, alpha, limit, K: tl.constexpr, P: tl.constexpr,
    BN: tl.constexpr, BK: tl.constexpr, MP: tl.constexpr, MASKED: tl.constexpr,
    BIAS: tl.constexpr, KIND: tl.constexpr, BULK: tl.constexpr, FORMAT: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Compute y (M, N), the activated gate and up, both of which are products of the normalised x
    with w (2 N, K)."""
    row, column = tl.program_id(0) * MP, tl.program_id(1) * BN
    n = column + tl.arange(0, BN)
    m = row + tl.arange(0, MP)
    keep, inside = m < M, n < N
    gate, up = tile_products(
        x, row, m, keep, w, column, N + column, inside, K, BK, MP, BN, True, MASKED, BULK, FORMAT,
        PDL,
    )  # fmt: skip
    scale = inverse_rms(squares, m, keep, eps, K, P, MP)[:, None]
    gate *= scale
    up *= scale
    if BIAS:
        gate += tl.load(bias + n, mask=inside, other=0.0).to(tl.float32)[None, :]
        up += tl.load(bias + N + n, mask=inside, other=0.0).to(tl.float32)[None, :]
    there = keep[:, None] & inside[None, :]
    result = activated(gate, up, alpha, limit, KIND)
    tl.store(y + m[:, None] * N + n[None, :], result.to(y.dtype.element_ty), mask=there)


@triton.jit
def page_of(pages, width, row, slot, there, PAGE: tl.constexpr):
    """Return the page that holds a slot of a row, from the table `pages` (rows, width); 0 if not
    `there`."""
    at = pages + row * width + slot // PAGE
    return tl.load(at, mask=there, other=0, cache_modifier=".cg").to(tl.int64)


@triton.jit
def cache_place(rows, slots, pages, width, m, keep, PAGE: tl.constexpr):
    """Return, for each token (MP,), the page with its slot and the slot's place in that page. The
    page is -1 for padding, and for slots past the pages of the row."""
    row = tl.load(rows + m, mask=keep, other=-1, cache_modifier=".cg")
    slot = tl.load(slots + m, mask=keep, other=0, cache_modifier=".cg")
    there = (row >= 0) & (slot // PAGE < width)
    page = page_of(pages, width, row, slot, there, PAGE)
    return tl.where(there, page, -1), slot % PAGE


@triton.jit
def place_in(cache, page, head, slot, KV: tl.constexpr, HD: tl.constexpr, PAGE: tl.constexpr):
    """Return the place in the cache (pages, KV, PAGE, HD) of the first number of a head in a slot,
    and the distance to the head's second number.

    Two numbers of 8 bits share a word, as in packed weights (products.py). The low halves of words
    belong to the slots in the first half of a page.
    """
    PER: tl.constexpr = 16 // cache.dtype.element_ty.primitive_bitwidth
    ROWS: tl.constexpr = PAGE // PER
    at = ((page * KV + head) * ROWS + slot % ROWS) * (HD * PER) + slot // ROWS
    return at, PER


@triton.jit
def narrowed(values, cache):
    """Convert float32 values to the format of the cache: its floating-point type, or the bits of
    the nearest e4m3 number (ties to even; values that are too large become the largest number)."""
    if cache.dtype.element_ty == tl.uint8:
        size = tl.minimum(tl.abs(values), 448.0)
        bits = size.to(tl.int32, bitcast=True)
        usual = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - (120 << 3)
        tiny = (size + 16384.0).to(tl.int32, bitcast=True) - 0x46800000  # in steps of 2**-9
        sign = (values.to(tl.int32, bitcast=True) >> 24) & 0x80
        made = (tl.where(size < 0.015625, tiny, usual) | sign).to(tl.uint8)
    else:
        made = values.to(cache.dtype.element_ty)
    return made


@triton.jit(do_not_specialize=["M", "width"])
def queries_keys_values(
    x, squares, w, bias, q, keys, values, raw, cos, sin, rows, slots, positions, pages, M, width,
    eps, K: tl.constexpr, P: tl.constexpr, H: tl.constexpr, KV: tl.constexpr, HD: tl.constexpr,
    PAGE: tl.constexpr, EARLY: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    MP: tl.constexpr, BIAS: tl.constexpr, TURN: tl.constexpr, RAW: tl.constexpr,
    FIRST: tl.constexpr, BULK: tl.constexpr, FORMAT: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Compute queries, keys and values. Queries go to q (M, H * HD), keys and values to the cache
    (pages, KV, PAGE, HD) as `place_in` says.

    A program computes the dimensions d and d + HD / 2 of one head, which rotary embedding mixes (if
    TURN). If RAW, queries and keys are not rotated here but written to raw (M, (H + KV) * HD), for
    the kernel `turn`. FIRST: the head that w begins with. pages: (rows, width). EARLY: the tables
    are read before the previous kernel has ended, because it writes none of rows, slots and pages.
    """
    HALF: tl.constexpr = HD // 2
    PARTS: tl.constexpr = (HALF + BN - 1) // BN
    row, own = tl.program_id(0) * MP, tl.program_id(1) // PARTS
    begin = (tl.program_id(1) % PARTS) * BN
    d = begin + tl.arange(0, BN)
    m = row + tl.arange(0, MP)
    keep, inside = m < M, d < HALF
    head, column = FIRST + own, own * HD + begin
    n = head * HD + d
    if EARLY:
        at, slot = cache_place(rows, slots, pages, width, m, keep, PAGE)
    a, b = tile_products(
        x, row, m, keep, w, column, column + HALF, inside, K, BK, MP, BN, True, HALF % BN != 0,
        BULK, FORMAT, PDL,
    )  # fmt: skip
    scale = inverse_rms(squares, m, keep, eps, K, P, MP)[:, None]
    a *= scale
    b *= scale
    if BIAS:
        a += tl.load(bias + n, mask=inside, other=0.0).to(tl.float32)[None, :]
        b += tl.load(bias + n + HALF, mask=inside, other=0.0).to(tl.float32)[None, :]
    if not EARLY:
        at, slot = cache_place(rows, slots, pages, width, m, keep, PAGE)
    keep = keep & (at >= 0)
    there = keep[:, None] & inside[None, :]
    if TURN and not RAW:  # noqa: SIM102 (of these two one is known when it is compiled)
        if head < H + KV:
            angle = tl.load(positions + m, mask=keep, other=0)[:, None] * HALF + d[None, :]
            c = tl.load(cos + angle, mask=there, other=0.0)
            s = tl.load(sin + angle, mask=there, other=0.0)
            a, b = a * c - b * s, b * c + a * s
    cached, stored = head - H, keys
    if head >= H + KV:
        cached, stored = head - H - KV, values
    if head < (H + KV if RAW else H):
        if RAW:
            o = raw + m[:, None] * ((H + KV) * HD) + n[None, :]
        else:
            o = q + m[:, None] * (H * HD) + n[None, :]
        tl.store(o, a.to(q.dtype.element_ty), mask=there)
        tl.store(o + HALF, b.to(q.dtype.element_ty), mask=there)
    else:
        place, step = place_in(keys, at, cached, slot, KV, HD, PAGE)
        kept = stored + place[:, None] + (d * step)[None, :]
        tl.store(kept, narrowed(a, keys), mask=there)
        tl.store(kept + HALF * step, narrowed(b, keys), mask=there)
