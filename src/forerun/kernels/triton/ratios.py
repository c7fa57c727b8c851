"""The first of two launches of `ratio` and `block`, and all of `sample`.

Every target and draft row is read once and reduced to the largest logit and the sum of weights of
each segment of 512 tokens.  The program that finishes a slot last knows both normalisers, and so
p(x) / q(x) of the drafted token.  For `ratio` the second launch throws the coins; for the others
the program that finishes a sequence last does.  If all guesses are kept (and always at temperature
0) the extra token is then drawn at once, and the second launch has nothing to do for the sequence.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents

from forerun.kernels.triton.arithmetic import (
    ACCEPT,
    SEGMENT,
    arrive,
    at_slot,
    inverse,
    limit_now,
    unit,
)
from forerun.kernels.triton.drawing import (
    draw_law,
    gather,
    is_fine,
    load_segments,
    summarise,
    tokens_of,
)
from forerun.kernels.triton.keys import DRAFT_ROW, IMPOSSIBLE, TARGET_ROW, fault_at, outside

RATIO = tl.constexpr(0)
BLOCKWISE = tl.constexpr(1)
SAMPLE = tl.constexpr(2)


@triton.jit
def _write_tile(values, rate, maxima, sums, segments, V: tl.constexpr):
    """Write the maxima and sums of segments (TILE,) whose logits are values (TILE, PARTS, 128)."""
    largest, total = summarise(values, rate)
    inside = segments * SEGMENT < V
    tl.store(maxima + segments, largest, mask=inside)
    tl.store(sums + segments, total, mask=inside)


@triton.jit
def _load_once(row, tokens, inside, threshold):
    """Like `load_values`, with a hint to the cache that these logits are not read again."""
    values = tl.load(
        row + tokens, mask=inside, other=float("-inf"), eviction_policy="evict_first"
    ).to(tl.float32)
    return tl.where(values < threshold, float("-inf"), values)


@triton.jit
def _load_rows(
    row,
    draft_row,
    columns,
    has_law,
    threshold,
    draft_threshold,
    V: tl.constexpr,
    POINT: tl.constexpr,
):
    """Load logits of the target's and the draft's row; both loads begin before either is used."""
    inside = columns < V
    values = _load_once(row, columns, inside, threshold)
    guessed = values
    if not POINT:
        guessed = _load_once(draft_row, columns, inside & has_law, draft_threshold)
    return values, guessed


@triton.jit(do_not_specialize=["num_sequences", "num_rows", "slot"])
def ratio_kernel(
    logits,  # (B, N, V)
    draft_logits,  # (B, N - 1, V), unless POINT
    tokens,  # (B, N - 1) int64
    lengths,  # (B,) int32
    temperatures,  # (B,) float32
    seeds,  # (B,) int64
    positions,  # (B,) int64
    thresholds,  # (B, N) float32, if truncated
    draft_thresholds,  # (B, N - 1) float32, if truncated
    maxima,  # (B, N, SEGMENTS) float32
    sums,  # (B, N, SEGMENTS) float32
    draft_maxima,  # (B, N, SEGMENTS) float32
    draft_sums,  # (B, N, SEGMENTS) float32
    laws,  # (B, N, 4) float32: largest logit and mass, of target and draft
    likeliests,  # (B, N) int32
    counts,  # (B, N) int32, zero before and after
    finished,  # (B,) int32, zero before and after
    limits,  # (B,) int32, FAR before: no slot past it matters
    ratios,  # (B, N) float32
    faults,  # (B, N) int32
    scales,  # (B, N) float32: what the target's row is multiplied by in the residual
    tested,  # (B, N) int32: slots whose second coin the next launch throws
    planned,  # (B,) int32: the slot to end at if no such coin falls well; -1: nothing is left to do
    out_reached,  # (B,) int32
    out_accepted,  # (B,) int32
    out_extra,  # (B,) int64
    out_fault,  # (B,) int32
    num_sequences,
    num_rows,
    slot,  # of the number that draws where all is kept
    PURPOSE: tl.constexpr,  # of that number
    RULE: tl.constexpr,
    V: tl.constexpr,
    SEGMENTS: tl.constexpr,
    TILE: tl.constexpr,
    STEPS: tl.constexpr,
    STAGES: tl.constexpr,
    ROWS: tl.constexpr,
    POINT: tl.constexpr,
    SKIP: tl.constexpr,  # whether to look for refusals first; pays where programs wait their turn
    EAGER: tl.constexpr,  # whether to ask for rows before it is known that they count
    TRUNCATED: tl.constexpr,
    PDL: tl.constexpr,  # whether the next launch may begin while this one ends
):
    TILES: tl.constexpr = (V + STEPS * TILE * SEGMENT - 1) // (STEPS * TILE * SEGMENT)
    pid = tl.program_id(0)
    tile = pid % TILES
    sequence = (pid // TILES) % num_sequences
    index = pid // TILES // num_sequences
    length = tl.load(lengths + sequence)
    temperature = tl.load(temperatures + sequence)
    seed = tl.load(seeds + sequence)
    position = tl.load(positions + sequence)
    place = sequence * num_rows + index
    drafted = sequence * (num_rows - 1) + index
    row = logits + place.to(tl.int64) * V
    draft_row = draft_logits + drafted.to(tl.int64) * V
    has_draft = (index < num_rows - 1) & (not POINT)
    threshold = float("-inf")
    draft_threshold = float("-inf")
    if TRUNCATED:
        threshold = tl.load(thresholds + place)
        draft_threshold = tl.load(draft_thresholds + drafted, mask=has_draft, other=0.0)
    if EAGER:
        columns = tokens_of(tile * TILE + tl.arange(0, TILE))
        values, guessed = _load_rows(
            row, draft_row, columns, has_draft, threshold, draft_threshold, V, POINT
        )
    rate = inverse(temperature)
    greedy = temperature == 0.0
    is_read = index <= length
    has_law = (index < length) & (not POINT)
    if SKIP and RULE == RATIO:  # noqa: SIM102
        if index > 0:  # a condition at run time
            is_read = is_read & (index <= limit_now(limits + sequence))
    start = place * SEGMENTS
    token = tl.load(tokens + drafted, mask=index < length, other=0)
    token = tl.minimum(tl.maximum(token, 0), V - 1).to(tl.int32)
    value = 0.0
    draft_value = 0.0
    if is_read:
        value = tl.load(row + token).to(tl.float32)  # asked for now, used by the last of a slot
        if not POINT:
            draft_value = tl.load(draft_row + token, mask=has_law, other=0.0).to(tl.float32)
        for step in tl.range(STEPS, num_stages=STAGES):
            segments = (tile * STEPS + step) * TILE + tl.arange(0, TILE)
            if not EAGER:
                values, guessed = _load_rows(
                    row, draft_row, tokens_of(segments), has_law, threshold, draft_threshold, V,
                    POINT,
                )  # fmt: skip
            _write_tile(values, rate, maxima + start, sums + start, segments, V)
            if not POINT and has_law:
                _write_tile(guessed, rate, draft_maxima + start, draft_sums + start, segments, V)
    if PDL:
        gdc_launch_dependents()
    if arrive(counts + place) == TILES - 1:
        if is_read:  # by all programs, or the slot is past a refusal
            largest, total = load_segments(maxima + start, sums + start, True, V, SEGMENTS)
            if not POINT:  # both rows are asked for before either is reduced
                draft_largest, draft_total = load_segments(
                    draft_maxima + start, draft_sums + start, has_law, V, SEGMENTS
                )
            best, mass, top, chance = gather(
                row, threshold, rate, largest, total, token, value, greedy, V, SEGMENTS,
            )  # fmt: skip
            fault = tl.where(is_fine(best, mass), 0, fault_at(index, TARGET_ROW))
            ratio = chance
            if not POINT and has_law:
                draft_best, draft_mass, _, draft_chance = gather(
                    draft_row, draft_threshold, rate, draft_largest, draft_total, token,
                    draft_value, greedy, V, SEGMENTS,
                )  # fmt: skip
                if (fault == 0) & ((draft_chance > 0.0) == 0):
                    fault = fault_at(index, IMPOSSIBLE)
                if is_fine(draft_best, draft_mass) == 0:
                    fault = fault_at(index, DRAFT_ROW)
                ratio = tl.div_rn(chance, tl.where(draft_chance > 0.0, draft_chance, 1.0))
                tl.store(laws + place * 4 + 2, draft_best)
                tl.store(laws + place * 4 + 3, draft_mass)
            tl.store(laws + place * 4, best)
            tl.store(laws + place * 4 + 1, mass)
            tl.store(likeliests + place, top)
            tl.store(ratios + place, ratio)
            tl.store(faults + place, fault)
            if SKIP and RULE == RATIO:
                share = tl.minimum(ratio, 1.0).to(tl.float64)
                is_kept = (fault == 0) & (unit(seed, position, index, ACCEPT) < share)
                if (is_kept & (index < length)) == 0:
                    tl.atomic_min(limits + sequence, index, sem="relaxed", scope="gpu")
        if RULE == RATIO:
            tl.store(counts + place, 0)
        elif arrive(finished + sequence) == num_rows - 1:
            first = sequence * num_rows
            slots = tl.arange(0, ROWS)
            inside = slots <= length  # all that may be needed is asked for at once
            wrongs = tl.load(faults + first + slots, mask=inside, other=0, cache_modifier=".cg")
            tops = tl.load(likeliests + first + slots, mask=inside, other=0, cache_modifier=".cg")
            guesses = tl.load(
                tokens + sequence * (num_rows - 1) + slots, mask=slots < length, other=0
            )
            last = first + length  # the row of the draw, which is made where all is kept
            best = tl.load(laws + last * 4, cache_modifier=".cg")
            largest, total = load_segments(
                maxima + last * SEGMENTS, sums + last * SEGMENTS, True, V, SEGMENTS
            )
            if TRUNCATED:
                threshold = tl.load(thresholds + last)
            fault = 0
            kept = 0
            if RULE == BLOCKWISE:
                steps = tl.load(
                    ratios + first + slots, mask=inside, other=0.0, cache_modifier=".cg"
                )
                coins = unit(seed, position, 2 * slots, ACCEPT)
                survival = 1.0
                tl.store(scales + first, 1.0)
                count = 0
                while count < length:
                    wrong = at_slot(wrongs, slots, count)
                    fault = tl.where(fault == 0, wrong, fault)
                    survival = tl.minimum(survival * at_slot(steps, slots, count), 1.0)
                    hopeful = at_slot(coins, slots, count) < survival.to(tl.float64)
                    count += 1
                    sure = hopeful & ((count == length) | (survival >= 1.0))
                    kept = tl.where(sure, count, kept)
                    tl.store(scales + first + count, survival)
                    tl.store(tested + first + count, (hopeful & (sure == 0)).to(tl.int32))
            fault = tl.where(fault == 0, at_slot(wrongs, slots, kept), fault)
            fault = outside(guesses, slots, fault, V)
            plan = kept
            if greedy | (kept == length) | (fault != 0):
                plan = -1
                extra = at_slot(tops, slots, kept)
                if (fault == 0) & (greedy == 0):
                    extra = draw_law(
                        logits + last.to(tl.int64) * V, largest, total, best, rate, threshold,
                        unit(seed, position, slot, PURPOSE), V, SEGMENTS,
                    )  # fmt: skip
                tl.store(out_extra + sequence, extra.to(tl.int64))
            tl.store(planned + sequence, plan)
            tl.store(out_reached + sequence, kept)
            tl.store(out_accepted + sequence, kept)
            tl.store(out_fault + sequence, fault)
            tl.store(finished + sequence, 0)
            tl.store(counts + first + slots, tl.zeros((ROWS,), tl.int32), mask=slots < num_rows)
