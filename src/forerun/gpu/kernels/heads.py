"""Kernels between the products of a drafting network that reads the target's hidden states.

An entry stands for a token.  Its input is a feature and the embedding of the token after it, each
normalised, side by side (`drafters/heads/network.py`).  The features of tokens that the target has
processed are kept (pages, PAGE, K), so that entries can be made of them when it is known which
token follows.  K is the hidden size, padded to KP.  A row that is negative is padding.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from forerun.gpu.kernels.lanes import known
from forerun.gpu.kernels.layers import page_of


@triton.jit
def _scaled(values, weight, eps, K: tl.constexpr):
    """Return a vector of K numbers, normalised and multiplied by the weights of a norm."""
    return values * tl.rsqrt(tl.sum(values * values) / K + eps) * weight


@triton.jit
def join(feature, token, embedding, norms, joined, eps, K: tl.constexpr, KP: tl.constexpr):
    """Write the input of an entry (2 K,), made from its feature (KP,) and the token that follows
    it. norms: (2, K), the weights of both norms."""
    k = tl.arange(0, KP)
    inside = k < K
    row = embedding + token.to(tl.int64) * K
    values = tl.load(row + k, mask=inside, other=0.0).to(tl.float32)
    first = tl.load(norms + k, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(norms + K + k, mask=inside, other=0.0).to(tl.float32)
    kind = joined.dtype.element_ty
    tl.store(joined + k, _scaled(feature, first, eps, K).to(kind), mask=inside)
    tl.store(joined + K + k, _scaled(values, second, eps, K).to(kind), mask=inside)


@triton.jit
def kept(features, pages, width, row, slot, PAGE: tl.constexpr, K: tl.constexpr):
    """Return the address of a slot's stored feature, found through the row's table of pages,
    `pages` (rows, width)."""
    page = page_of(pages, width, row, slot, row >= 0, PAGE)
    return features + (page * PAGE + slot % PAGE) * K


@triton.jit
def norm_states(
    states, weight, normed, eps, K: tl.constexpr, KP: tl.constexpr, PDL: tl.constexpr
):  # fmt: skip
    """Write hidden states (M, parts * K) with each part normalised; one program per token and
    part."""
    part, parts = tl.program_id(1), tl.num_programs(1)
    k = tl.arange(0, KP)
    inside = k < K
    at = (tl.program_id(0) * parts + part) * K + k
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    values = tl.load(states + at, mask=inside, other=0.0).to(tl.float32)
    scale = tl.load(weight + part * K + k, mask=inside, other=0.0).to(tl.float32)
    result = _scaled(values, scale, eps, K)
    tl.store(normed + at, result.to(normed.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["width"])
def keep_features(
    fused, rows, slots, features, pages, width, PAGE: tl.constexpr, K: tl.constexpr,
    KP: tl.constexpr,
):  # fmt: skip
    """Store new features (M, K) in the places of their rows and slots; one program per token."""
    token = tl.program_id(0)
    k = tl.arange(0, KP)
    row = tl.load(rows + token)
    if row >= 0:
        values = tl.load(fused + token * K + k, mask=k < K, other=0.0)
        where = kept(features, pages, width, row, tl.load(slots + token), PAGE, K)
        tl.store(where + k, values, mask=k < K)


@triton.jit(do_not_specialize=["width"])
def join_kept(
    tokens, rows, slots, embedding, norms, joined, eps, features, pages, width,
    PAGE: tl.constexpr, K: tl.constexpr, KP: tl.constexpr,
):  # fmt: skip
    """Write the inputs (M, 2 K) of entries from their stored features and the tokens (M,) that
    follow them."""
    entry = tl.program_id(0)
    k = tl.arange(0, KP)
    row = tl.load(rows + entry)
    if row >= 0:
        where = kept(features, pages, width, row, tl.load(slots + entry), PAGE, K)
        feature = tl.load(where + k, mask=k < K, other=0.0).to(tl.float32)
        token = tl.load(tokens + entry)
        join(feature, token, embedding, norms, joined + entry * 2 * K, eps, K, KP)


@triton.jit(do_not_specialize=["length", "width"])
def join_followers(
    fused, accepted, extra, drafts, rows, slots, embedding, norms, joined, length, eps, features,
    pages, width, V: tl.constexpr, PAGE: tl.constexpr, K: tl.constexpr, KP: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """After a round was decided, write the inputs (M, 2 K) of its entries, and store their
    features; one program per token that the target was fed.

    A token of a lane is followed by the next token of the draft as far as that was accepted, then
    by the extra token. Entries past that are overwritten by the next round.
    """
    entry = tl.program_id(0)
    lane, slot = entry // (length + 1), entry % (length + 1)
    k = tl.arange(0, KP)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    row = tl.load(rows + entry)
    if row >= 0:
        last = tl.load(extra + lane)
        drafted = tl.load(drafts + lane * length + slot, mask=slot < length, other=0)
        token = known(tl.where(slot < tl.load(accepted + lane), drafted, last), V)
        feature = tl.load(fused + entry * K + k, mask=k < K, other=0.0)
        where = kept(features, pages, width, row, tl.load(slots + entry), PAGE, K)
        tl.store(where + k, feature, mask=k < K)
        feature = feature.to(tl.float32)
        join(feature, token, embedding, norms, joined + entry * 2 * K, eps, K, KP)


@triton.jit(do_not_specialize=["step", "length", "width"])
def draft_entry(
    last, sampled, drafts, lane_rows, stored, remaining, embedding, norms, x, joined, rows, slots,
    positions, segments, step, length, eps, features, pages, width, V: tl.constexpr,
    PAGE: tl.constexpr, K: tl.constexpr, KP: tl.constexpr, FIRST: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Write the input (lanes, 2 K) of a draft step, and the row, slot and position of each entry;
    one program per lane.

    In the first step, the entry is that of the last token that the target has processed, which is
    followed by the last token of the text. A later step continues from the network's own output x
    (lanes, K) and the token that was sampled from it, which is also recorded in drafts (lanes,
    length). A text of one token has no entry.
    """
    lane = tl.program_id(0)
    k = tl.arange(0, KP)
    inside = k < K
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    place = tl.load(stored + lane) + step - 1
    row = tl.load(lane_rows + lane)
    row = tl.where((tl.load(remaining + lane) > 0) & (place >= step), row, -1)
    if FIRST:
        token = tl.load(last + lane)
        where = kept(features, pages, width, row, tl.maximum(place, 0), PAGE, K)
        feature = tl.load(where + k, mask=inside & (row >= 0), other=0.0)
        tl.store(x + lane * K + k, feature, mask=inside)
    else:
        token = tl.load(sampled + lane)
        tl.store(drafts + lane * length + step - 1, token)
        feature = tl.load(x + lane * K + k, mask=inside, other=0.0)
    join(
        feature.to(tl.float32), known(token, V), embedding, norms, joined + lane * 2 * K, eps, K, KP
    )
    tl.store(rows + lane, row)
    tl.store(slots + lane, tl.maximum(place, 0))
    tl.store(positions + lane, tl.maximum(place, 0))
    tl.store(segments + 2 * lane, lane)
    tl.store(segments + 2 * lane + 1, tl.where(row >= 0, 1, 0))
