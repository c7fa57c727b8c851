"""The second launch of `ratio` and `block`: the residual of the target's law, and a draw from it.

(scale * p - q)+ is summed over segments at every slot where the round may end.  For `ratio` that is
one slot, and every program throws the coins that say which; if all guesses are kept, the first
program of the sequence draws from the target's law.  The program that finishes a sequence last
throws the second coins of `block`, for which the sums are the Z of its slots, and draws the extra
token.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from forerun.kernels.triton.arithmetic import (
    ACCEPT,
    FAR,
    RESIDUAL,
    SEGMENT,
    arrive,
    at_slot,
    inverse,
    load_values,
    unit,
)
from forerun.kernels.triton.drawing import draw_law, pick, power, sum_segments, tokens_of, total_of
from forerun.kernels.triton.keys import outside


@triton.jit
def _owed(
    row,
    draft_row,
    token,
    columns,
    inside,
    threshold,
    draft_threshold,
    rate,
    law,
    scale,
    POINT: tl.constexpr,
):
    """Return the residual max(scale * p - q, 0) at some columns; p is the target's law and q the
    draft's.

    law: (4,), the largest logit and the mass of the target, then of the draft.
    """
    values = load_values(row, columns, inside, threshold)
    if POINT:
        drawn = (columns == token).to(tl.float32)
    else:  # both rows are asked for before either is used
        guessed = load_values(draft_row, columns, inside, draft_threshold)
    target = power(values, tl.load(law), rate) * tl.div_rn(1.0, tl.load(law + 1))
    if not POINT:
        drawn = power(guessed, tl.load(law + 2), rate) * tl.div_rn(1.0, tl.load(law + 3))
    return tl.maximum(scale * target - drawn, 0.0)


@triton.jit
def _draw_target(
    logits,
    thresholds,
    maxima,
    sums,
    laws,
    place,
    rate,
    number,
    V: tl.constexpr,
    SEGMENTS: tl.constexpr,
    TRUNCATED: tl.constexpr,
):
    """Draw a token of the target's law at one row."""
    every = tl.arange(0, SEGMENTS)
    inside = every * SEGMENT < V
    threshold = float("-inf")
    if TRUNCATED:
        threshold = tl.load(thresholds + place)
    return draw_law(
        logits + place.to(tl.int64) * V,
        tl.load(maxima + place * SEGMENTS + every, mask=inside, other=float("-inf")),
        tl.load(sums + place * SEGMENTS + every, mask=inside, other=0.0), tl.load(laws + place * 4),
        rate, threshold, number, V, SEGMENTS,
    )  # fmt: skip


@triton.jit
def _throw_coins(tokens, ratios, faults, coins, length, V: tl.constexpr, ROWS: tl.constexpr):
    """The number of guesses of a sequence that `ratio` keeps, and the fault.

    All pointers are to the entries of this sequence.  Entries past the first refusal are not used,
    because they may be from another round.
    """
    slots = tl.arange(0, ROWS)
    inside = slots <= length
    wrongs = tl.load(faults + slots, mask=inside, other=0)
    chances = tl.minimum(tl.load(ratios + slots, mask=inside, other=0.0), 1.0)
    is_kept = (slots < length) & (wrongs == 0) & (coins < chances.to(tl.float64))
    kept = tl.min(tl.where(is_kept, FAR, slots), axis=0)
    guesses = tl.load(tokens + slots, mask=slots < length, other=0)
    return kept, outside(guesses, slots, at_slot(wrongs, slots, kept), V)


@triton.jit(do_not_specialize=["num_sequences", "num_rows", "num_slots"])
def residual_kernel(
    logits,  # (B, N, V)
    draft_logits,  # (B, N - 1, V), unless POINT
    tokens,  # (B, N - 1) int64
    temperatures,  # (B,) float32
    seeds,  # (B,) int64
    positions,  # (B,) int64
    thresholds,  # (B, N) float32, if truncated
    draft_thresholds,  # (B, N - 1) float32, if truncated
    lengths,  # (B,) int32
    maxima,  # (B, N, SEGMENTS) float32
    sums,  # (B, N, SEGMENTS) float32
    owed,  # (B, num_slots, SEGMENTS) float32
    laws,  # (B, N, 4) float32
    likeliests,  # (B, N) int32
    ratios,  # (B, N) float32
    faults,  # (B, N) int32
    scales,  # (B, N) float32, for `block`
    tested,  # (B, N) int32, for `block`
    planned,  # (B,) int32, for `block`
    limits,  # (B,) int32, FAR after
    finished,  # (B,) int32, zero before and after
    out_reached,  # (B,) int32
    out_accepted,  # (B,) int32
    out_extra,  # (B,) int64
    out_fault,  # (B,) int32
    num_sequences,
    num_rows,
    num_slots,  # slots that are summed: 1 for `ratio`, N - 1 for `block`
    BLOCKWISE: tl.constexpr,
    V: tl.constexpr,
    SEGMENTS: tl.constexpr,
    TILE: tl.constexpr,
    STEPS: tl.constexpr,
    STAGES: tl.constexpr,
    ROWS: tl.constexpr,
    POINT: tl.constexpr,
    TRUNCATED: tl.constexpr,
    PDL: tl.constexpr,  # whether this launch may begin while the first one ends
):
    TILES: tl.constexpr = (V + STEPS * TILE * SEGMENT - 1) // (STEPS * TILE * SEGMENT)
    pid = tl.program_id(0)
    tile = pid % TILES
    sequence = (pid // TILES) % num_sequences
    column = pid // TILES // num_sequences  # of `owed`
    first = sequence * num_rows
    slots = tl.arange(0, ROWS)
    length = tl.load(lengths + sequence)
    seed = tl.load(seeds + sequence)
    position = tl.load(positions + sequence)
    temperature = tl.load(temperatures + sequence)
    rate = inverse(temperature)
    coins = unit(seed, position, 2 * slots - 1 if BLOCKWISE else slots, ACCEPT)
    number = unit(seed, position, 0, RESIDUAL)
    if PDL:
        gdc_wait()
    num_summed = 1
    if BLOCKWISE:
        plan = tl.load(planned + sequence)
        slot = column
        after = (slots > plan) & (slots < length)
        is_tested = tl.load(tested + first + slots, mask=after, other=0)
        num_summed += tl.sum(is_tested, axis=0)
        is_here = (slots == slot) & ((slots == plan) | (is_tested != 0))
        is_summed = (plan >= 0) & (tl.sum(is_here.to(tl.int32), axis=0) > 0)
    else:
        draft = sequence * (num_rows - 1)
        plan, fault = _throw_coins(
            tokens + draft, ratios + first, faults + first, coins, length, V, ROWS
        )
        greedy = temperature == 0.0
        slot = plan
        is_summed = ((greedy | (plan == length)) == 0) & (fault == 0)
        if tile == 0:
            tl.store(limits + sequence, FAR)
            tl.store(out_fault + sequence, fault)
            if is_summed == 0:
                last = first + plan
                extra = tl.load(likeliests + last)
                if (fault == 0) & (greedy == 0):
                    extra = _draw_target(
                        logits, thresholds, maxima, sums, laws, last, rate, number, V, SEGMENTS,
                        TRUNCATED,
                    )  # fmt: skip
                tl.store(out_reached + sequence, plan)
                tl.store(out_accepted + sequence, plan)
                tl.store(out_extra + sequence, extra.to(tl.int64))
    if is_summed:
        threshold = float("-inf")
        draft_threshold = float("-inf")
        guess = sequence * (num_rows - 1) + slot
        if TRUNCATED:
            threshold = tl.load(thresholds + first + slot)
            if not POINT:
                draft_threshold = tl.load(draft_thresholds + guess)
        token = tl.load(tokens + guess)
        scale = 1.0
        if BLOCKWISE:
            scale = tl.load(scales + first + slot)
        for step in tl.range(STEPS, num_stages=STAGES):
            segments = (tile * STEPS + step) * TILE + tl.arange(0, TILE)
            columns = tokens_of(segments)
            weights = _owed(
                logits + (first + slot).to(tl.int64) * V, draft_logits + guess.to(tl.int64) * V,
                token, columns, columns < V, threshold, draft_threshold, rate,
                laws + (first + slot) * 4, scale, POINT,
            )  # fmt: skip
            mine = owed + (sequence * num_slots + column) * SEGMENTS + segments
            tl.store(mine, sum_segments(weights), mask=segments * SEGMENT < V)
        if arrive(finished + sequence) == num_summed * TILES - 1:
            every = tl.arange(0, SEGMENTS)
            inside = every * SEGMENT < V
            kept = plan
            if BLOCKWISE:
                survivals = tl.load(scales + first + slots, mask=after, other=1.0)
                slot = tl.min(tl.where(is_tested != 0, slots, FAR), axis=0)
                while slot < FAR:  # the last one that passes is kept
                    at = (sequence * num_slots + slot) * SEGMENTS + every
                    parts = tl.load(owed + at, mask=inside, other=0.0, cache_modifier=".cg")
                    missing = total_of(parts).to(tl.float32)  # Z
                    left = at_slot(survivals, slots, slot)
                    share = tl.div_rn(missing, left * (missing + 1.0 - left))
                    if at_slot(coins, slots, slot) < share.to(tl.float64):
                        kept = slot
                    slot = tl.min(tl.where((is_tested != 0) & (slots > slot), slots, FAR), axis=0)
            column = 0
            if BLOCKWISE:
                column = kept
                scale = tl.load(scales + first + kept)
            at = (sequence * num_slots + column) * SEGMENTS + every
            parts = tl.load(owed + at, mask=inside, other=0.0, cache_modifier=".cg")
            total = total_of(parts)
            last = first + kept
            guess = sequence * (num_rows - 1) + kept
            threshold = float("-inf")
            draft_threshold = float("-inf")
            if TRUNCATED:
                threshold = tl.load(thresholds + last)
                if not POINT:
                    draft_threshold = tl.load(draft_thresholds + guess)
            row = logits + last.to(tl.int64) * V
            if total > 0.0:
                aim = number * total
                segment, before = pick(parts, aim, SEGMENTS)
                lanes = segment * SEGMENT + tl.arange(0, SEGMENT)
                left_over = _owed(
                    row, draft_logits + guess.to(tl.int64) * V, tl.load(tokens + guess), lanes,
                    lanes < V, threshold, draft_threshold, rate, laws + last * 4, scale, POINT,
                )  # fmt: skip
                lane, _ = pick(left_over, aim - before, SEGMENT)
                extra = segment * SEGMENT + lane
            else:  # rounding left nothing: the target's own law stands in
                extra = _draw_target(
                    logits, thresholds, maxima, sums, laws, last, rate, number, V, SEGMENTS,
                    TRUNCATED,
                )  # fmt: skip
            tl.store(out_reached + sequence, kept)
            tl.store(out_accepted + sequence, kept)
            tl.store(out_extra + sequence, extra.to(tl.int64))
            tl.store(finished + sequence, 0)
