"""Kernels of a pass with one program per row, for work that needs a whole row at once, so that a
product cannot do it.

A program has the same shape in every pass, so its sums have the same order.  Sizes are those of
layers.py; K is padded to KP.  UNIT is added to the weights of norms.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from forerun.gpu.kernels.layers import PARTIAL, narrowed, page_of, place_in


@triton.jit
def _leave(
    values, token, norm, x, normed, squares, UNIT: tl.constexpr, K: tl.constexpr, KP: tl.constexpr,
    P: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    """Store a token's row (KP,) of the residual stream, and the inputs of the norm that follows."""
    k = tl.arange(0, KP)
    tl.store(x + token * K + k, values, mask=k < K)
    if NORM:
        wide = values.to(tl.float32)
        scaled = wide * (tl.load(norm + k, mask=k < K, other=0.0).to(tl.float32) + UNIT)
        tl.store(normed + token * K + k, scaled.to(values.dtype), mask=k < K)
        if P == 1:
            tl.store(squares + token, tl.sum(wide * wide))
        else:
            part = tl.arange(0, KP // PARTIAL)
            sums = tl.sum(tl.reshape(wide * wide, (KP // PARTIAL, PARTIAL)), 1)
            tl.store(squares + token * P + part, sums, mask=part < P)


@triton.jit
def embed(
    embedding, ids, norm, x, normed, squares, scale, UNIT: tl.constexpr, K: tl.constexpr,
    KP: tl.constexpr, P: tl.constexpr, NORM: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Write the embedding row of each token, and the inputs of the norm after it; one program per
    token."""
    token = tl.program_id(0)
    k = tl.arange(0, KP)
    if PDL:
        gdc_wait()
    row = tl.load(ids + token).to(tl.int64)
    if PDL:
        gdc_launch_dependents()
    values = tl.load(embedding + row * K + k, mask=k < K, other=0.0)
    values = (values.to(tl.float32) * scale).to(values.dtype)
    _leave(values, token, norm, x, normed, squares, UNIT, K, KP, P, NORM)


@triton.jit
def add_rows(
    added, parts, after, residual, norm, x, normed, squares, gain, eps, UNIT: tl.constexpr,
    K: tl.constexpr, KP: tl.constexpr, P: tl.constexpr, PARTS: tl.constexpr, AFTER: tl.constexpr,
    NORM: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Compute x (M, K) = residual + gain * added, where the added rows are normalised first if
    AFTER, and the inputs of the norm that follows; one program per token.

    If PARTS is not 0, each token has PARTS added rows, which are summed in order with the weights
    parts (M, PARTS). residual: must not be written by the previous kernel.
    """
    token = tl.program_id(0)
    k = tl.arange(0, KP)
    if AFTER:
        weight = tl.load(after + k, mask=k < K, other=0.0).to(tl.float32) + UNIT
    before = tl.load(residual + token * K + k, mask=k < K, other=0.0, cache_modifier=".cg")
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    if PARTS > 0:
        values = tl.zeros((KP,), tl.float32)
        for i in tl.static_range(PARTS):
            row = added + (token * PARTS + i) * K
            part = tl.load(row + k, mask=k < K, other=0.0).to(tl.float32)
            values += tl.load(parts + token * PARTS + i) * part
    else:
        values = tl.load(added + token * K + k, mask=k < K, other=0.0).to(tl.float32)
    if AFTER:
        values *= tl.rsqrt(tl.sum(values * values) / K + eps)
        values = (values * weight).to(before.dtype).to(tl.float32)
    values = (before.to(tl.float32) + values * gain).to(before.dtype)
    _leave(values, token, norm, x, normed, squares, UNIT, K, KP, P, NORM)


@triton.jit
def final_norm(x, norm, y, stride, eps, UNIT: tl.constexpr, K: tl.constexpr, KP: tl.constexpr):
    """Write y (·, stride), the normalised x (M, K), for readers of hidden states; one program per
    token."""
    token = tl.program_id(0)
    k = tl.arange(0, KP)
    values = tl.load(x + token * K + k, mask=k < K, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(values * values) / K + eps)
    weight = tl.load(norm + k, mask=k < K, other=0.0).to(tl.float32) + UNIT
    result = (values * scale).to(y.dtype.element_ty).to(tl.float32) * weight
    tl.store(y + token * stride + k, result.to(y.dtype.element_ty), mask=k < K)


@triton.jit(do_not_specialize=["width"])
def turn(
    raw, head_norms, q, keys, cos, sin, rows, slots, positions, pages, width, eps,
    UNIT: tl.constexpr, H: tl.constexpr, KV: tl.constexpr, HD: tl.constexpr, PAGE: tl.constexpr,
    HP: tl.constexpr, WP: tl.constexpr, RD: tl.constexpr, HEAD_NORM: tl.constexpr,
    WIDE_NORM: tl.constexpr, TURN: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Norm and rotate the queries and keys in raw (M, (H + KV) * HD), and write them to their
    places. One program per token handles its queries, another one its keys.

    The first RD dimensions of a head are rotated, in pairs of d and d + RD / 2. WP: heads, padded.
    head_norms: (2, HD) if HEAD_NORM, ((H + KV) * HD,) if WIDE_NORM, which norms all heads together.
    """
    token, is_key = tl.program_id(0), tl.program_id(1) == 1
    first, count = tl.where(is_key, H, 0), tl.where(is_key, KV, H)
    head, d = tl.arange(0, WP), tl.arange(0, HP)
    there = (head < count)[:, None] & (d < HD)[None, :]
    at = (first + head)[:, None] * HD + d[None, :]
    half: tl.constexpr = RD // 2
    mate = tl.where(d < half, d + half, tl.where(d < RD, d - half, d))
    other = (first + head)[:, None] * HD + mate[None, :]
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    row, slot = tl.load(rows + token), tl.load(slots + token)
    if (row >= 0) & (slot // PAGE < width):  # no further do tables of angles reach, either
        raw += token * (H + KV) * HD
        a = tl.load(raw + at, mask=there, other=0.0).to(tl.float32)
        b = tl.load(raw + other, mask=there, other=0.0).to(tl.float32)
        if WIDE_NORM:
            size = tl.rsqrt(tl.sum(tl.sum(a * a, 1), 0) / (count * HD) + eps)
            a *= size * (tl.load(head_norms + at, mask=there, other=0.0).to(tl.float32) + UNIT)
            b *= size * (tl.load(head_norms + other, mask=there, other=0.0).to(tl.float32) + UNIT)
        if HEAD_NORM:
            weight = head_norms + tl.where(is_key, HD, 0)
            size = tl.rsqrt(tl.sum(a * a, 1) / HD + eps)[:, None]
            a *= size * (tl.load(weight + d, mask=d < HD, other=0.0).to(tl.float32) + UNIT)
            b *= size * (tl.load(weight + mate, mask=d < HD, other=0.0).to(tl.float32) + UNIT)
        if TURN:
            angle = tl.load(positions + token) * half + tl.where(d < half, d, mate)
            c = tl.load(cos + angle, mask=d < RD, other=1.0)
            s = tl.load(sin + angle, mask=d < RD, other=0.0)
            a = a * c + b * tl.where(d < half, -s, s)
        if is_key:
            page = page_of(pages, width, row, slot, True, PAGE)
            place, step = place_in(keys, page, head, slot % PAGE, KV, HD, PAGE)
            kept = keys + place[:, None] + (d * step)[None, :]
            tl.store(kept, narrowed(a, keys), mask=there)
        else:
            o = q + token * H * HD + head[:, None] * HD + d[None, :]
            tl.store(o, a.to(q.dtype.element_ty), mask=there)
