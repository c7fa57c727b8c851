"""Kernels between the passes of a captured round: the inputs of the next, and its outcome.

A lane is a request's place in a captured round.  All lanes fit one program.  Their number and the
draft length are no constants of the kernels, so that rounds of many shapes share a compilation.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def known(token, V: tl.constexpr):
    """The token, or 0 if it is outside the vocabulary."""
    return tl.where((token >= 0) & (token < V), token, 0).to(tl.int32)


@triton.jit(do_not_specialize=["LANES"])
def first_draft_inputs(
    previous, last, rows, stored, remaining, ids, pass_rows, slots, positions, segments, picked,
    LANES, PADDED: tl.constexpr,
):  # fmt: skip
    """Write the inputs of the first draft step, which feeds the last two tokens of each text. The
    drafter may not have been fed the one before the last; if it has, that token's keys and values
    are written again, with the same bits."""
    lane = tl.arange(0, PADDED)
    there = lane < LANES
    row = tl.load(rows + lane, mask=there, other=-1)
    row = tl.where(tl.load(remaining + lane, mask=there, other=0) > 0, row, -1)
    place = tl.load(stored + lane, mask=there, other=0)
    alone = place == 0  # nothing comes before the last token
    at = 2 * lane
    tl.store(ids + at, tl.load(previous + lane, mask=there, other=0), mask=there)
    tl.store(ids + at + 1, tl.load(last + lane, mask=there, other=0), mask=there)
    tl.store(pass_rows + at, tl.where(alone, -1, row), mask=there)
    tl.store(pass_rows + at + 1, row, mask=there)
    tl.store(slots + at, tl.maximum(place - 1, 0), mask=there)
    tl.store(slots + at + 1, place, mask=there)
    tl.store(positions + at, tl.maximum(place - 1, 0), mask=there)
    tl.store(positions + at + 1, place, mask=there)
    tl.store(segments + 2 * lane, tl.where(alone, at + 1, at), mask=there)
    count = tl.where(alone, 1, 2)
    tl.store(segments + 2 * lane + 1, tl.where(row >= 0, count, 0), mask=there)
    tl.store(picked + lane, at + 1, mask=there)


@triton.jit(do_not_specialize=["LANES", "step", "stride"])
def next_draft_inputs(
    sampled, drafts, rows, stored, remaining, ids, pass_rows, slots, positions, segments, picked,
    step, stride, LANES, V: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """Write the inputs of a later draft step, which feeds the token sampled in the step before it,
    and record that token. If no token could be sampled, token 0 is fed, and the decision reports
    the fault."""
    lane = tl.arange(0, PADDED)
    there = lane < LANES
    token = tl.load(sampled + lane, mask=there, other=0)
    tl.store(drafts + lane * stride + step - 1, token, mask=there)
    row = tl.load(rows + lane, mask=there, other=-1)
    row = tl.where(tl.load(remaining + lane, mask=there, other=0) > 0, row, -1)
    place = tl.load(stored + lane, mask=there, other=0) + step
    tl.store(ids + lane, known(token, V), mask=there)
    tl.store(pass_rows + lane, row, mask=there)
    tl.store(slots + lane, place, mask=there)
    tl.store(positions + lane, place, mask=there)
    tl.store(segments + 2 * lane, lane, mask=there)
    tl.store(segments + 2 * lane + 1, tl.where(row >= 0, 1, 0), mask=there)
    tl.store(picked + lane, lane, mask=there)


@triton.jit(do_not_specialize=["K", "LANES"])
def target_inputs(
    last, sampled, drafts, asked, rows, stored, remaining, lengths, ids, pass_rows, slots,
    positions, segments, picked, K, LANES, DRAWN: tl.constexpr, V: tl.constexpr,
    PADDED: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Write the inputs of the target's pass: the last token of each text and its draft.

    DRAWN: the last token of the draft was sampled just now. lengths: receives how many tokens of
    each draft count: no more than were asked for and drafted, and than the text has room for
    besides the extra token; 0 for unused lanes.
    """
    lane = tl.arange(0, PADDED)
    there = lane < LANES
    room = tl.load(remaining + lane, mask=there, other=0)
    row = tl.where(room > 0, tl.load(rows + lane, mask=there, other=-1), -1)
    place = tl.load(stored + lane, mask=there, other=0)
    length = tl.minimum(tl.load(asked + lane, mask=there, other=0), tl.maximum(room - 1, 0))
    length = tl.where(row >= 0, tl.minimum(length, K), 0)
    tl.store(lengths + lane, length, mask=there)
    if DRAWN:
        token = tl.load(sampled + lane, mask=there, other=0)
        tl.store(drafts + lane * K + K - 1, token, mask=there)
        tl.debug_barrier()
    tl.store(segments + 2 * lane, lane * (K + 1), mask=there)
    tl.store(segments + 2 * lane + 1, tl.where(row >= 0, K + 1, 0), mask=there)
    slot = tl.arange(0, WIDE)
    inside = there[:, None] & (slot <= K)[None, :]
    at = lane[:, None] * (K + 1) + slot[None, :]
    token = tl.load(
        drafts + lane[:, None] * K + slot[None, :] - 1,
        mask=inside & (slot > 0)[None, :],
        other=0,
    )
    first = tl.load(last + lane, mask=there, other=0)
    token = tl.where((slot == 0)[None, :], first[:, None], known(token, V))
    where = place[:, None] + slot[None, :]
    tl.store(ids + at, token, mask=inside)
    tl.store(pass_rows + at, row[:, None] + tl.zeros_like(at), mask=inside)
    tl.store(slots + at, where, mask=inside)
    tl.store(positions + at, where, mask=inside)
    tl.store(picked + at, at, mask=inside)


@triton.jit(do_not_specialize=["K", "LANES"])
def advance(
    accepted, extra, fault, reached, drafts, previous, last, rows, stored, remaining, output,
    results, K, LANES, PADDED: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Advance the lanes by the tokens that were decided, and write the results (LANES, K + 4): the
    number of accepted tokens (-1 for an unused lane), the extra token, the fault, the row that the
    extra token follows, and the draft.

    K: the number of tokens of the draft. If it is a tree, `previous` gets wrong values, which
    nobody reads then.
    """
    lane = tl.arange(0, PADDED)
    there = lane < LANES
    room = tl.load(remaining + lane, mask=there, other=0)
    used = (room > 0) & (tl.load(rows + lane, mask=there, other=-1) >= 0)
    count = tl.load(accepted + lane, mask=there, other=0)
    token = tl.load(extra + lane, mask=there, other=0).to(tl.int32)
    wrong = tl.load(fault + lane, mask=there, other=0)
    old = tl.load(last + lane, mask=there, other=0)
    before = tl.load(drafts + lane * K + count - 1, mask=there & used & (count > 0), other=0)
    before = tl.where(count > 0, before.to(tl.int32), old)
    moves = there & used & (wrong == 0)
    tl.store(previous + lane, before, mask=moves)
    tl.store(last + lane, token, mask=moves)
    place = tl.load(stored + lane, mask=there, other=0)
    tl.store(stored + lane, place + count + 1, mask=moves)
    tl.store(remaining + lane, tl.where(wrong == 0, room - count - 1, 0), mask=there & used)
    tl.store(output + lane, tl.load(output + lane, mask=there, other=0) + count + 1, mask=moves)
    base = results + lane * (K + 4)
    tl.store(base, tl.where(used, count, -1), mask=there)
    tl.store(base + 1, token, mask=there)
    tl.store(base + 2, wrong, mask=there)
    tl.store(base + 3, tl.load(reached + lane, mask=there, other=0), mask=there)
    slot = tl.arange(0, WIDE)
    inside = there[:, None] & (slot < K)[None, :]
    drafted = tl.load(drafts + lane[:, None] * K + slot[None, :], mask=inside, other=0)
    tl.store(base[:, None] + 4 + slot[None, :], drafted.to(tl.int32), mask=inside)
