"""Passes of a network that guesses in blocks (drafters/block/network.py): one call per thread.

Tokens that the target has processed are *told*: their features become keys and values of every
layer, and nothing else.  *Entries*, the tokens of the blocks, go through all layers.  A pass may
have told tokens alone, as most passes over a prompt do.

Stages of convolutions have no items in a network without them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from forerun.lean.attention import UNLIMITED, Cache, HeadShape, attend, make_scores, place
from forerun.lean.crew import Board, share
from forerun.lean.heads_pass import norm_parts
from forerun.lean.held import Held
from forerun.lean.jit import entry, inner, sources
from forerun.lean.linear import (
    SILU,
    Bytes,
    Floats,
    Matrices,
    Work,
    cut,
    make_work,
    num_panels,
    project,
    project_gated,
    project_onto,
)
from forerun.lean.plan import Ints, Plan
from forerun.lean.scalar import copy, normalise
from forerun.lean.shape import HAS_DOT_PRODUCTS, LANES

NUM_STAGES = 21
(
    NORM_STATES, FUSE, BEGIN,
    NORM_INPUTS, KERNEL, CONVOLVE, QKV, PLACE, ATTEND, GATHER, OUT, ADD,
    NORM_MLP, KERNEL_MLP, CONVOLVE_MLP, GATED, CUT_INNER, DOWN, ADD_MLP,
    NORM_HEAD, HEAD,
) = range(NUM_STAGES)  # fmt: skip
FIRST_OF_LAYER, PER_LAYER = NORM_INPUTS, NORM_HEAD - NORM_INPUTS
MATRICES, OF_CONVS = 4, 2  # of a layer
MATRIX_OF = (
    0, 0, 0,
    1, 5, 1, 1, 0, 0, 2, 2, 0,
    3, 6, 3, 3, 4, 4, 0,
    1, 1,
)  # fmt: skip
"""The matrix of each stage in the first layer, or that of the next stage, for which it prepares
inputs; those of the last two stages are counted on from the last layer's."""
BEFORE, AFTER = 0, 1  # attention or the MLP


class BlockWeights(NamedTuple):
    """The weights of a network: the matrix of the features, four of each layer, and the head."""

    matrices: Matrices
    state_norms: Floats  # (parts, values of a part) of the target's states; without parts: none
    norms: Floats  # (2, hidden): of features, and before the head
    layer_norms: Floats  # (layers, 2, hidden): before attention, and before the MLP
    head_norms: Floats  # (layers, 2, head size), of queries and of keys, where `heads` has norms
    heads: HeadShape
    eps: Any  # float32
    bases: Floats  # (layers, 2, 2, taps, hidden): of the convolutions around attention and MLP,
    # before and after each; without convolutions: no taps
    group: Any  # channels that share the part of a coefficient that depends on the entry
    block_size: Any


class BlockScratch(NamedTuple):
    """Activations of a pass between its stages."""

    states: Floats  # (told, values of the target's states), normed
    features: Floats  # (tokens, hidden), of told tokens
    inputs: Floats  # (tokens, hidden), of the next layer's queries, keys and values
    qkv: Floats  # (tokens, heads * head size)
    queries: Floats  # (key heads, tokens * queries per key, head size)
    mixed: Floats  # (tokens, query heads * head size)
    gathered: Floats  # those of entries
    hidden: Floats  # (entries, hidden)
    normed: Floats  # (entries, hidden)
    inner: Floats  # (entries, mlp size)
    kernels: Floats  # (entries, 2 * taps * groups): coefficients that depend on the entry
    shifted: Floats  # (entries, hidden): inputs of the MLP after a convolution
    added: Floats  # (entries, hidden): what attention or the MLP adds, before a convolution
    limbs: Bytes  # (tokens, bytes): the inputs of the next matrix, where it takes limbs


class BlockLevel(NamedTuple):
    """The inputs and outputs of a pass."""

    plan: Plan  # entries have logits
    sight: Plan  # the same, where the slot of an entry is the last of its block: it sees up to that
    told: Ints  # (told,): their numbers among the tokens
    states: Floats  # (told, values): the target's
    begun: Floats  # (entries, hidden): their embeddings
    logits: Floats  # (entries, draft vocabulary)


@inner
def num_items(stage: int, level: BlockLevel, w: BlockWeights, s: BlockScratch) -> Any:
    """How many items the threads share in a stage."""
    num_entries, num_tokens = len(level.plan.logit_tokens), len(level.plan.ids)
    if (stage >= ATTEND and num_entries == 0) or (stage <= FUSE and len(level.told) == 0):
        return 0
    if stage == NORM_STATES:
        return len(level.told)
    if stage in (KERNEL, CONVOLVE, ADD, KERNEL_MLP, CONVOLVE_MLP, ADD_MLP):
        if w.bases.shape[3] == 0 or (stage == KERNEL and num_entries == 0):
            return 0
        if stage in (KERNEL, KERNEL_MLP):
            return num_panels(s.kernels)
        return num_tokens if stage == CONVOLVE else num_entries
    if stage in (FUSE, OUT, DOWN):
        return num_panels(s.features)
    if stage == QKV:
        return num_panels(s.qkv) - first_panel(level, w)
    if stage in (BEGIN, NORM_INPUTS, PLACE):
        return num_tokens
    if stage == ATTEND:
        return len(level.plan.tiles)
    if stage == GATED:
        return num_panels(s.inner)
    if stage == HEAD:
        return num_panels(level.logits)
    if stage == CUT_INNER and not HAS_DOT_PRODUCTS:
        return 0
    return num_entries


@inner
def first_panel(level: BlockLevel, w: BlockWeights) -> Any:
    """The first panel of queries, keys and values to compute. If all tokens belong to the text, the
    panels of queries are left out."""
    return 0 if len(level.plan.logit_tokens) else w.heads.queries * w.heads.size // LANES


@inner
def begin(w: BlockWeights, level: BlockLevel, s: BlockScratch, token: int) -> None:
    """Begin with one token: norm its feature if it belongs to the text, or write its embedding if
    it is an entry of a block."""
    number = level.plan.logit_of[token]
    if number < 0:
        normalise(s.features[token], w.norms[0], w.eps, s.features[token])
    else:
        copy(level.begun[number], s.hidden[number])


@inner
def norm_inputs(
    m: Matrices, matrix: int, w: BlockWeights, level: BlockLevel, s: BlockScratch, layer: int,
    i: int,
) -> None:  # fmt: skip
    """Compute the inputs of the queries, keys and values of a layer for one token, or those of the
    convolution before them."""
    number, norm = level.plan.logit_of[i], w.layer_norms[layer, 0]
    if w.bases.shape[3] > 0:
        if number >= 0:
            normalise(s.hidden[number], norm, w.eps, s.normed[number])
            kernel = matrix + MATRIX_OF[KERNEL] - MATRIX_OF[NORM_INPUTS]
            cut(m, kernel, s.normed[number], s.limbs[number])
        return
    if number < 0:
        copy(s.features[i], s.inputs[i])
    else:
        normalise(s.hidden[number], norm, w.eps, s.inputs[i])
    cut(m, matrix, s.inputs[i], s.limbs[i])


@inner
def convolve(
    w: BlockWeights, s: BlockScratch, layer: int, part: int, side: int, entry: int, values: Floats,
    out: Floats,
) -> None:  # fmt: skip
    """Add to `out` (hidden,) the convolution of values (entries, hidden) at one entry.

    part: 0 for that around attention, 1 for that around the MLP.
    """
    base, own = w.bases[layer, part, side], s.kernels[entry]
    taps, width = base.shape
    groups = width // w.group
    for tap in range(min(taps, entry % w.block_size + 1)):
        x, fixed = values[entry - tap], base[tap]
        for group in range(groups):
            share_of = own[(side * taps + tap) * groups + group]
            for channel in range(group * w.group, (group + 1) * w.group):
                out[channel] += x[channel] * (fixed[channel] + share_of)


@inner
def convolve_inputs(
    w: BlockWeights, level: BlockLevel, s: BlockScratch, layer: int, i: int
) -> None:
    """Compute the inputs of the queries, keys and values of a layer for one token."""
    number = level.plan.logit_of[i]
    if number < 0:
        copy(s.features[i], s.inputs[i])
    else:
        clear(s.inputs[i])
        convolve(w, s, layer, 0, BEFORE, number, s.normed, s.inputs[i])


@inner
def clear(x: Floats) -> None:
    """Set a vector to zero."""
    for i in range(x.size):
        x[i] = np.float32(0)


@inner
def run_stages(
    board: Board, w: BlockWeights, cache: Cache, s: BlockScratch, level: BlockLevel, work: Work,
    scores: Floats,
) -> None:  # fmt: skip
    """Execute the stages of one pass. The stages of a layer are repeated for every layer."""
    m, num_layers = w.matrices, len(w.layer_norms)
    plan, num_entries = level.plan, len(level.plan.logit_tokens)
    entries, has_convs = plan.order[:num_entries], w.bases.shape[3] > 0
    num_matrices = MATRICES + OF_CONVS if has_convs else MATRICES
    for step in range(NUM_STAGES + PER_LAYER * (num_layers - 1)):
        layer = max(0, min((step - FIRST_OF_LAYER) // PER_LAYER, num_layers - 1))
        stage = step - layer * PER_LAYER
        matrix = MATRIX_OF[stage]
        if stage >= NORM_HEAD:
            matrix += num_matrices * num_layers
        elif stage >= FIRST_OF_LAYER:
            matrix += num_matrices * layer
        for i in share(board, step, num_items(stage, level, w, s)):
            if stage == NORM_STATES:
                norm_parts(w.state_norms, w.eps, level.states[i], s.states[i])
                cut(m, matrix, s.states[i], s.limbs[i])
            elif stage == BEGIN:
                begin(w, level, s, i)
            elif stage == NORM_INPUTS:
                norm_inputs(m, matrix, w, level, s, layer, i)
            elif stage == CONVOLVE:
                convolve_inputs(w, level, s, layer, i)
                cut(m, matrix, s.inputs[i], s.limbs[i])
            elif stage == PLACE:
                place(w.heads, plan, cache, layer, 0, i, w.head_norms[layer], s.qkv, s.queries)
            elif stage == ATTEND:
                attend(w.heads, level.sight, cache, layer, UNLIMITED, i, s.queries, scores, s.mixed)
            elif stage == GATHER:
                copy(s.mixed[plan.logit_tokens[i]], s.gathered[i])
                cut(m, matrix, s.gathered[i], s.limbs[i])
            elif stage == NORM_MLP:
                normalise(s.hidden[i], w.layer_norms[layer, 1], w.eps, s.normed[i])
                kernel = MATRIX_OF[KERNEL_MLP] - MATRIX_OF[NORM_MLP] if has_convs else 0
                cut(m, matrix + kernel, s.normed[i], s.limbs[i])
            elif stage == CONVOLVE_MLP:
                clear(s.shifted[i])
                convolve(w, s, layer, 1, BEFORE, i, s.normed, s.shifted[i])
                cut(m, matrix, s.shifted[i], s.limbs[i])
            elif stage in (ADD, ADD_MLP):
                part = 0 if stage == ADD else 1
                convolve(w, s, layer, part, AFTER, i, s.added, s.hidden[i])
            elif stage == GATED:
                inputs = s.shifted if has_convs else s.normed
                project_gated(m, matrix, i, inputs, num_entries, SILU, s.inner, work)
            elif stage == CUT_INNER:
                cut(m, matrix, s.inner[i], s.limbs[i])
            elif stage == NORM_HEAD:
                normalise(s.hidden[i], w.norms[1], w.eps, s.normed[i])
                cut(m, matrix, s.normed[i], s.limbs[i])
            elif stage in (OUT, DOWN) and not has_convs:
                inputs = s.gathered if stage == OUT else s.inner
                project_onto(m, matrix, i, inputs, num_entries, s.hidden, work)
            else:
                inputs, places, out = s.normed, plan.places, level.logits
                if stage == FUSE:
                    inputs, places, out = s.states, level.told, s.features
                elif stage == QKV:
                    inputs, places, out = s.inputs, plan.order, s.qkv
                    i += first_panel(level, w)
                elif stage in (KERNEL, KERNEL_MLP):
                    places, out = entries, s.kernels
                elif stage in (OUT, DOWN):
                    inputs = s.gathered if stage == OUT else s.inner
                    places, out = entries, s.added
                project(m, matrix, i, inputs, places, out, work)


def build(revision: int) -> Callable[..., None]:
    @entry
    def guess(board: Board, held: Held) -> None:
        """Execute one pass.

        held: `BlockWeights`, `Cache`, `BlockScratch`, `BlockLevel`.
        """
        w, cache, s, level = held.value
        work = make_work(len(level.plan.ids) + 0 * revision, s.limbs)
        run_stages(board, w, cache, s, level, work, make_scores(w.heads, cache))

    return guess


guess = build(sources())
