"""Bias, penalties and bans on the logits of a round, in place, as the host makes them.

The same float32 operations in the same order as on the host, none of them fused, so that edited
logits are the same bits.  The drafted tokens before a slot count as text there.
"""

from __future__ import annotations

import triton
import triton.language as tl

SEEN = tl.constexpr(1 << 24)
"""Is added to the count of a token if it occurs in the prompt."""


@triton.jit
def _before(row, lane, drafted, depths, num_rows, first, stride, PER_ROW: tl.constexpr):
    """The number of drafted tokens before a row of logits, and the rows where these tokens
    stand."""
    if PER_ROW:
        return tl.load(depths + row), drafted + row * stride
    return first + row % num_rows, drafted + lane * stride


@triton.jit(do_not_specialize=["num_rows", "first", "stride"])
def penalise(
    logits,  # (B * num_rows, V) float32
    drafted,  # (B, stride) int64; (B * num_rows, stride) if PER_ROW
    depths,  # (B * num_rows,) int32, if PER_ROW
    is_edited,  # (B,) int32
    penalties,  # (3, B) float32: repetition, presence, frequency
    counts,  # (B, V) int32: in the output, with SEEN for tokens of the prompt
    bias,  # (B, V) float32
    num_rows,
    first,  # drafted tokens before the first row of a sequence
    stride,
    LANES: tl.constexpr,
    V: tl.constexpr,
    BLOCK: tl.constexpr,
    PER_ROW: tl.constexpr,
):
    """Apply the bias, then the repetition penalty, then the presence and frequency penalties."""
    row = tl.program_id(0)
    lane = row // num_rows
    if tl.load(is_edited + lane) == 0:
        return
    before, guesses = _before(row, lane, drafted, depths, num_rows, first, stride, PER_ROW)
    tokens = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = tokens < V
    at = lane.to(tl.int64) * V + tokens
    count = tl.load(counts + at, mask=inside, other=0)
    for index in range(before):
        count += (tokens == tl.load(guesses + index)).to(tl.int32)
    place = logits + row.to(tl.int64) * V + tokens
    values = tl.load(place, mask=inside, other=0.0)
    values += tl.load(bias + at, mask=inside, other=0.0)
    repetition = tl.load(penalties + lane)
    presence = tl.load(penalties + LANES + lane)
    frequency = tl.load(penalties + 2 * LANES + lane)
    repeated = tl.where(values < 0.0, values * repetition, tl.div_rn(values, repetition))
    values = tl.where(count > 0, repeated, values)
    times = tl.where(count >= SEEN, count - SEEN, count).to(tl.float32)
    values = tl.where(times > 0.0, values - (presence + frequency * times), values)
    tl.store(place, values, mask=inside)


@triton.jit(do_not_specialize=["num_rows", "first", "stride"])
def ban(
    logits,  # (B * num_rows, V) float32
    drafted,  # as above
    depths,
    outputs,  # (B,) int64: position in the output of the token after the text
    num_words,  # (B,) int32
    words,  # (B, WORDS, TAIL + 3) int32: last token, tokens before it, end, those tokens backwards
    tails,  # (B, TAIL) int32: the last tokens of the text
    num_rows,
    first,
    stride,
    V: tl.constexpr,
    WORDS: tl.constexpr,
    TAIL: tl.constexpr,
    PER_ROW: tl.constexpr,
):
    """Forbid the last token of a word if the text before it ends with the word's other tokens, and
    the output position is before the word's end of validity."""
    row = tl.program_id(0)
    lane = row // num_rows
    count = tl.load(num_words + lane)
    if count == 0:
        return
    before, guesses = _before(row, lane, drafted, depths, num_rows, first, stride, PER_ROW)
    back = tl.arange(0, TAIL)  # 0 is the token before this slot
    is_guess = back < before
    guess = tl.load(guesses + before - 1 - back, mask=is_guess, other=-1).to(tl.int32)
    text = tails + lane * TAIL + TAIL - 1 - (back - before)
    context = tl.where(is_guess, guess, tl.load(text, mask=is_guess == 0, other=-1))
    position = tl.load(outputs + lane) + before
    for index in range(count):
        word = words + (lane * WORDS + index) * (TAIL + 3)
        size = tl.load(word + 1)
        differs = (back < size) & (context != tl.load(word + 3 + back))
        is_hit = (tl.sum(differs.to(tl.int32), axis=0) == 0) & (position < tl.load(word + 2))
        place = logits + row.to(tl.int64) * V + tl.load(word)
        tl.store(place, float("-inf"), mask=is_hit)


@triton.jit
def note(
    accepted, extra, fault, drafts, rows, remaining, is_edited, num_words, counts, tails,
    K: tl.constexpr, V: tl.constexpr, TAIL: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Count the tokens that a round has emitted; one program per lane, launched before the lanes
    are moved on."""
    lane = tl.program_id(0)
    used = (tl.load(remaining + lane) > 0) & (tl.load(rows + lane) >= 0)
    used = used & (tl.load(fault + lane) == 0)
    used = used & ((tl.load(is_edited + lane) + tl.load(num_words + lane)) > 0)
    if used:
        kept = tl.load(accepted + lane)
        last = tl.load(extra + lane)
        slot = tl.arange(0, WIDE)
        token = tl.load(drafts + lane * K + slot, mask=slot < kept, other=0)
        token = tl.where(slot == kept, last, token)
        at = lane.to(tl.int64) * V + token
        tl.atomic_add(counts + at, tl.full((WIDE,), 1, tl.int32), mask=slot <= kept)
        back = tl.arange(0, TAIL)
        source = back + kept + 1  # in the tail followed by what was emitted
        old = tl.load(tails + lane * TAIL + source, mask=source < TAIL, other=0)
        new = source - TAIL
        guess = tl.load(drafts + lane * K + new, mask=(new >= 0) & (new < kept), other=0)
        fresh = tl.where(new == kept, last, guess).to(tl.int32)
        tl.debug_barrier()  # every token is read before one is overwritten
        tl.store(tails + lane * TAIL + back, tl.where(source < TAIL, old, fresh))
