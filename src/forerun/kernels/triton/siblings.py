"""`siblings` on trees, from the laws of all rows: a walk from the text down, child after child.

A child x is kept with chance min(1, P(x) / q(x)), where P is the part of the target's law that its
refused siblings left.  These are single numbers, so one program walks for a sequence.  If a child
is refused, the next P needs the sum of (P - q)+ over the vocabulary.  There the walk stops, and the
next launch computes the sum in many programs, the last of which walks on.  Sequences whose walk is
over need nothing from a launch.  P itself is not stored: it is computed again from the logits and
the sums.
"""

from __future__ import annotations

import triton
import triton.language as tl

from forerun.kernels.triton.arithmetic import (
    ACCEPT,
    RESIDUAL,
    SEGMENT,
    arrive,
    depth_of,
    finite,
    inverse,
    load_values,
    unit,
)
from forerun.kernels.triton.drawing import draw_law, pick, power, sum_segments, tokens_of, total_of
from forerun.kernels.triton.keys import DRAFT_ROW, IMPOSSIBLE, TARGET_ROW, fault_at, outside


@triton.jit
def chance_at(row, columns, inside, threshold, rate, law):
    """The probabilities of some tokens.  law: (2,), the largest logit and the mass of the row."""
    values = load_values(row, columns, inside, threshold)
    largest = tl.load(law, cache_modifier=".cg")
    return power(values, largest, rate) * tl.div_rn(1.0, tl.load(law + 1, cache_modifier=".cg"))


@triton.jit
def _draft_chance(
    draft_row,
    token,
    columns,
    inside,
    threshold,
    rate,
    law,
    POINT: tl.constexpr,
):
    """The probabilities of some tokens under the law that a node was drawn from: a row of logits,
    or with POINT a point mass on `token`."""
    if POINT:
        chance = (columns == token).to(tl.float32)
    else:
        chance = chance_at(draft_row, columns, inside, threshold, rate, law + 2)
    return chance


@triton.jit
def left_over(
    logits,
    draft_logits,
    tokens,
    thresholds,
    draft_thresholds,
    laws,
    refused,
    rests,
    reached,
    num_refused,
    columns,
    rate,
    V: tl.constexpr,
    POINT: tl.constexpr,
    TRUNCATED: tl.constexpr,
):
    """The target's law minus the refused children, at some columns, before the last normalisation.

    All pointers are to the entries of one sequence.  rests: the sums that normalise after each
    refused child but the last.
    """
    inside = columns < V
    threshold = float("-inf")
    if TRUNCATED:
        threshold = tl.load(thresholds + reached)
    row = logits + reached.to(tl.int64) * V
    left = chance_at(row, columns, inside, threshold, rate, laws + reached * 4)
    count = 0
    rest = 1.0
    while count < num_refused:
        node = tl.load(refused + count, cache_modifier=".cg")
        if TRUNCATED:
            threshold = tl.load(draft_thresholds + node)
        drawn = _draft_chance(
            draft_logits + node.to(tl.int64) * V,
            tl.load(tokens + node),
            columns,
            inside,
            threshold,
            rate,
            laws + node * 4,
            POINT,
        )
        left = tl.maximum(left * tl.div_rn(1.0, rest) - drawn, 0.0)
        rest = tl.load(rests + count, cache_modifier=".cg")
        count += 1
    return left


@triton.jit
def _is_fine(law):
    """Whether a row has a finite largest logit and no NaN, which would be in its mass."""
    largest = tl.load(law, cache_modifier=".cg")
    return finite(largest) & finite(tl.load(law + 1, cache_modifier=".cg"))


@triton.jit
def _walk(
    logits,
    draft_logits,
    tokens,
    parents,
    thresholds,
    draft_thresholds,
    laws,
    likeliests,
    refused,
    rests,
    node,
    reached,
    num_refused,
    length,
    rate,
    greedy,
    seed,
    position,
    V: tl.constexpr,
    POINT: tl.constexpr,
    TRUNCATED: tl.constexpr,
):
    """Walk from `node` on: (refused node or length, row reached, children refused there, fault).

    The walk ends at a refusal, because its sum is not known yet.  All pointers are to the entries
    of one sequence.
    """
    fault = tl.where(_is_fine(laws + reached * 4), 0, fault_at(reached, TARGET_ROW))
    going_on = (node < length) & (fault == 0)
    while going_on:
        is_refused = False
        if tl.load(parents + node) == reached - 1:
            token = tl.load(tokens + node)
            column = tl.arange(0, 1) + tl.minimum(tl.maximum(token, 0), V - 1).to(tl.int32)
            chance = 1.0
            if not POINT:
                threshold = float("-inf")
                if TRUNCATED:
                    threshold = tl.load(draft_thresholds + node)
                chance = tl.sum(
                    chance_at(
                        draft_logits + node.to(tl.int64) * V,
                        column,
                        column < V,
                        threshold,
                        rate,
                        laws + node * 4 + 2,
                    ),
                    axis=0,
                )
                if _is_fine(laws + node * 4 + 2) == 0:
                    fault = fault_at(node, DRAFT_ROW)
            left = tl.sum(
                left_over(
                    logits,
                    draft_logits,
                    tokens,
                    thresholds,
                    draft_thresholds,
                    laws,
                    refused,
                    rests,
                    reached,
                    num_refused,
                    column,
                    rate,
                    V,
                    POINT,
                    TRUNCATED,
                ),
                axis=0,
            )
            if num_refused > 0:
                rest = tl.load(rests + num_refused - 1, cache_modifier=".cg")
                left = tl.div_rn(left, rest)
            if greedy:  # a law is one token, and a refusal leaves it whole
                left = (token == tl.load(likeliests + reached, cache_modifier=".cg")).to(tl.float32)
                chance = 1.0
            if (fault == 0) & ((chance > 0.0) == 0):
                fault = fault_at(node, IMPOSSIBLE)
            ratio = tl.minimum(tl.div_rn(left, tl.where(chance > 0.0, chance, 1.0)), 1.0)
            if unit(seed, position, node, ACCEPT) < ratio.to(tl.float64):
                reached = node + 1
                num_refused = 0
                if (fault == 0) & (_is_fine(laws + reached * 4) == 0):
                    fault = fault_at(reached, TARGET_ROW)
            else:
                is_refused = greedy == 0
        going_on = (is_refused == 0) & (node + 1 < length) & (fault == 0)
        node = tl.where(is_refused, node, node + 1)
    return node, reached, num_refused, fault


@triton.jit(do_not_specialize=["num_rows"])
def sibling_kernel(
    logits,  # (B, N, V)
    draft_logits,  # (B, N - 1, V), unless POINT
    tokens,  # (B, N - 1) int64
    parents,  # (B, N - 1) int32
    temperatures,  # (B,) float32
    seeds,  # (B,) int64
    positions,  # (B,) int64
    thresholds,  # (B, N) float32, if truncated
    draft_thresholds,  # (B, N - 1) float32, if truncated
    lengths,  # (B,) int32
    maxima,  # (B, N, SEGMENTS) float32
    sums,  # (B, N, SEGMENTS) float32
    owed,  # (B, N, SEGMENTS) float32, of which the first of N is used
    laws,  # (B, N, 4) float32: largest logit and mass, of target and draft
    likeliests,  # (B, N) int32
    rests,  # (B, N) float32: the sums of (P - q)+ for the refused children
    refused,  # (B, N) int32: these children; the last entry is how many
    planned,  # (B,) int32: the child whose sum is to be formed; -1: the walk is over
    finished,  # (B,) int32, zero before and after
    out_reached,  # (B,) int32
    out_accepted,  # (B,) int32
    out_extra,  # (B,) int64
    out_fault,  # (B,) int32
    num_rows,
    FIRST: tl.constexpr,  # begins the walks: one program a sequence
    V: tl.constexpr,
    SEGMENTS: tl.constexpr,
    TILE: tl.constexpr,
    ROWS: tl.constexpr,
    POINT: tl.constexpr,
    TRUNCATED: tl.constexpr,
):
    TILES: tl.constexpr = 1 if FIRST else (V + TILE * SEGMENT - 1) // (TILE * SEGMENT)
    sequence = tl.program_id(0) // TILES
    tile = tl.program_id(0) % TILES
    node = 0
    if not FIRST:
        node = tl.load(planned + sequence)
    if node >= 0:
        first = sequence * num_rows
        draft = sequence * (num_rows - 1)
        logits += first.to(tl.int64) * V
        draft_logits += draft.to(tl.int64) * V
        tokens += draft
        parents += draft
        thresholds += first
        draft_thresholds += draft
        laws += first * 4
        refused += first
        rests += first
        temperature = tl.load(temperatures + sequence)
        rate = inverse(temperature)
        owed += first.to(tl.int64) * SEGMENTS
        every = tl.arange(0, SEGMENTS)
        inside = every * SEGMENT < V
        reached = sequence * 0
        num_refused = reached
        is_last = True
        if not FIRST:
            reached = tl.load(out_reached + sequence)
            num_refused = tl.load(refused + num_rows - 1)
            segments = tile * TILE + tl.arange(0, TILE)
            left = left_over(
                logits,
                draft_logits,
                tokens,
                thresholds,
                draft_thresholds,
                laws,
                refused,
                rests,
                reached,
                num_refused,
                tokens_of(segments),
                rate,
                V,
                POINT,
                TRUNCATED,
            )
            tl.store(owed + segments, sum_segments(left), mask=segments * SEGMENT < V)
            is_last = arrive(finished + sequence) == TILES - 1
        if is_last:
            seed = tl.load(seeds + sequence)
            position = tl.load(positions + sequence)
            length = tl.load(lengths + sequence)
            parts = tl.zeros((SEGMENTS,), tl.float32)
            if not FIRST:
                parts = tl.load(owed + every, mask=inside, other=0.0, cache_modifier=".cg")
            total = total_of(parts)
            if not FIRST:
                if total > 0.0:
                    tl.store(rests + num_refused - 1, total.to(tl.float32))
                else:  # rounding left nothing: the child is forgotten
                    num_refused -= 1
                node += 1
                tl.debug_barrier()
            node, reached, num_refused, fault = _walk(
                logits,
                draft_logits,
                tokens,
                parents,
                thresholds,
                draft_thresholds,
                laws,
                likeliests + first,
                refused,
                rests,
                node,
                reached,
                num_refused,
                length,
                rate,
                temperature == 0.0,
                seed,
                position,
                V,
                POINT,
                TRUNCATED,
            )
            if FIRST:
                slots = tl.arange(0, ROWS)
                guesses = tl.load(tokens + slots, mask=slots < length, other=0)
                fault = outside(guesses, slots, fault, V)
            if (node < length) & (fault == 0):
                tl.store(refused + num_refused, node)
                tl.store(refused + num_rows - 1, num_refused + 1)
                tl.store(planned + sequence, node)
            else:
                tl.store(planned + sequence, -1)
                extra = tl.load(likeliests + first + reached, cache_modifier=".cg")
                if (temperature > 0.0) & (fault == 0):
                    number = unit(seed, position, 0, RESIDUAL)
                    if (num_refused > 0) & (total > 0.0):
                        aim = number * total
                        segment, before = pick(parts, aim, SEGMENTS)
                        lanes = segment * SEGMENT + tl.arange(0, SEGMENT)
                        weights = left_over(
                            logits,
                            draft_logits,
                            tokens,
                            thresholds,
                            draft_thresholds,
                            laws,
                            refused,
                            rests,
                            reached,
                            num_refused,
                            lanes,
                            rate,
                            V,
                            POINT,
                            TRUNCATED,
                        )
                        lane, _ = pick(weights, aim - before, SEGMENT)
                        extra = segment * SEGMENT + lane
                    else:
                        threshold = float("-inf")
                        if TRUNCATED:
                            threshold = tl.load(thresholds + reached)
                        at = (first + reached) * SEGMENTS + every
                        extra = draw_law(
                            logits + reached.to(tl.int64) * V,
                            tl.load(maxima + at, mask=inside, other=float("-inf")),
                            tl.load(sums + at, mask=inside, other=0.0),
                            tl.load(laws + reached * 4),
                            rate,
                            threshold,
                            number,
                            V,
                            SEGMENTS,
                        )
                tl.store(out_extra + sequence, extra.to(tl.int64))
                tl.store(out_accepted + sequence, depth_of(parents, reached - 1))
                tl.store(out_fault + sequence, fault)
            tl.store(out_reached + sequence, reached)
            tl.store(finished + sequence, 0)
