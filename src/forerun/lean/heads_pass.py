"""Passes of a drafting network (drafters/heads/network.py): one call per thread.

Every token gets keys and values; only tokens whose logits are needed go through the rest.  A pass
without such tokens, like most passes over a prompt, computes no queries either.  A line of guesses
is drafted level by level in one call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from forerun.lean.attention import UNLIMITED, Cache, HeadShape, attend, make_scores, place
from forerun.lean.crew import Board, share
from forerun.lean.held import Held
from forerun.lean.jit import entry, inner, sources
from forerun.lean.line import Line, go_on
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
from forerun.lean.plan import Plan
from forerun.lean.scalar import copy, normalise
from forerun.lean.shape import HAS_DOT_PRODUCTS, LANES

NUM_STAGES = 17
(
    NORM_STATES, FUSE, NORM_INPUTS, JOIN, NORM_JOINED, QKV, PLACE, ATTEND,
    GATHER, OUT, NORM_MLP, GATED, CUT_INNER, DOWN, NORM_HEAD, HEAD, CHOOSE,
) = range(NUM_STAGES)  # fmt: skip
MATRIX_OF = (
    0,
    0,
    1,
    0,
    1,
    1,
    0,
    0,
    2,
    2,
    3,
    3,
    4,
    4,
    5,
    5,
    0,
)  # of each stage, or of the next with one
OF_FEATURE, OF_EMBEDDING, OF_MLP, OF_HEAD, OF_JOINED = range(5)  # the norms


class HeadsWeights(NamedTuple):
    """The weights of a network, and the embedding of its target."""

    matrices: Matrices
    embedding: Floats  # (vocabulary, hidden)
    state_norms: Floats  # (parts, values of a part) of the target's states; without parts: none
    norms: Floats  # (4, hidden), or (5, hidden) where inputs are joined
    joins: bool  # the first matrix joins feature and embedding; else it fuses states
    norms_residual: bool  # the layer adds to the normed feature
    norms_output: bool  # the next feature is the output after the norm of the head
    head_norms: Floats  # (2, head size), of queries and of keys, where `heads` has norms
    heads: HeadShape
    eps: Any  # float32


class HeadsScratch(NamedTuple):
    """The activations of the tokens of a pass between its stages."""

    hidden: Floats  # (tokens, values of the target's states): those states, normed
    features: Floats  # (tokens, hidden): what the layer adds to
    joined: Floats  # (tokens, 2 * hidden)
    qkv: Floats  # (tokens, heads * head size)
    queries: Floats  # (key heads, tokens * queries per key, head size)
    mixed: Floats  # (tokens, query heads * head size)
    gathered: Floats  # those of the tokens with logits
    normed: Floats  # (tokens, hidden)
    inner: Floats  # (tokens, mlp size)
    limbs: Bytes  # (tokens, bytes): the inputs of the next matrix, where it takes limbs


class Level(NamedTuple):
    """The inputs and outputs of one pass.  The tokens of the first level are given by the caller;
    those of later levels are guesses."""

    plan: Plan
    hidden: Floats  # (tokens, values): the target's states; empty where features are known
    outputs: Floats  # (tokens with logits, hidden)
    logits: Floats  # (places, draft vocabulary)


@inner
def num_items(stage: int, level: Level, w: HeadsWeights, s: HeadsScratch, line: Line) -> Any:
    """How many items the threads share in a stage."""
    if stage == CHOOSE:
        return len(line.limits)
    if len(level.plan.ids) == 0 or (stage in (NORM_STATES, FUSE) and len(level.hidden) == 0):
        return 0
    if (stage == FUSE and w.joins) or (stage in (JOIN, NORM_JOINED) and not w.joins):
        return 0
    if stage > ATTEND and len(level.plan.logit_tokens) == 0:
        return 0
    if stage == CUT_INNER and not HAS_DOT_PRODUCTS:
        return 0
    if stage in (FUSE, JOIN, OUT, DOWN):
        return num_panels(s.features)
    if stage == QKV:
        return num_panels(s.qkv) - first_panel(level, w)
    if stage == ATTEND:
        return len(level.plan.tiles)
    if stage == GATED:
        return num_panels(s.inner)
    if stage == HEAD:
        return num_panels(level.logits)
    return len(level.plan.logit_tokens) if stage > ATTEND else len(level.plan.ids)


@inner
def first_panel(level: Level, w: HeadsWeights) -> Any:
    """The first panel of queries, keys and values to compute.  Where no logits are needed, panels
    that contain only queries are left out."""
    return 0 if len(level.plan.logit_tokens) else w.heads.queries * w.heads.size // LANES


@inner
def norm_parts(norms: Floats, eps: Any, states: Floats, normed: Floats) -> None:
    """Norm the target's states of one token, (values,), each part by itself; without parts they
    stay as they are."""
    num_parts, size = norms.shape
    if num_parts == 0:
        copy(states, normed)
    for part in range(num_parts):
        begin, end = part * size, (part + 1) * size
        normalise(states[begin:end], norms[part], eps, normed[begin:end])


@inner
def choose(line: Line, row: int, number: int, level: Level, later: Level, s: HeadsScratch) -> None:
    """Make the guess of one row after a level; if its line stays open, the guess becomes the row's
    token of the next level."""
    if not line.is_open[row]:
        return
    go_on(line, row, number, level.logits[row])
    if line.is_open[row]:
        plan, at = later.plan, line.starts[row] + number
        plan.ids[row] = line.tokens[row, number]
        plan.positions[row] = plan.slots[row] = at
        plan.before[row] = at + 1
        copy(level.outputs[row], s.features[row])


@inner
def run_levels(
    board: Board, w: HeadsWeights, cache: Cache, s: HeadsScratch, first: Level, later: Level,
    line: Line, work: Work, scores: Floats,
) -> None:  # fmt: skip
    """Execute the stages of every level; the logits of a level decide the tokens of the next."""
    m, size = w.matrices, w.embedding.shape[1]
    for step in range(NUM_STAGES * max(1, line.tokens.shape[1])):
        number, stage = divmod(step, NUM_STAGES)
        level = first if number == 0 else later
        if number > 0 and stage == 0 and not line.is_open.any():
            return
        plan, hidden, outputs, logits = level
        num_outputs = len(plan.logit_tokens)
        for i in share(board, step, num_items(stage, level, w, s, line)):
            if stage == CHOOSE:
                choose(line, i, number, level, later, s)
            elif stage == NORM_STATES:
                normed = s.features[i] if w.joins else s.hidden[i]
                norm_parts(w.state_norms, w.eps, hidden[i], normed)
                if not w.joins:
                    cut(m, MATRIX_OF[stage], normed, s.limbs[i])
            elif stage == NORM_INPUTS:
                normalise(s.features[i], w.norms[OF_FEATURE], w.eps, s.joined[i, :size])
                embedding = w.embedding[plan.ids[i]]
                normalise(embedding, w.norms[OF_EMBEDDING], w.eps, s.joined[i, size:])
                cut(m, MATRIX_OF[JOIN if w.joins else QKV], s.joined[i], s.limbs[i])
            elif stage == NORM_JOINED:
                normalise(s.features[i], w.norms[OF_JOINED], w.eps, s.normed[i])
                cut(m, MATRIX_OF[stage], s.normed[i], s.limbs[i])
            elif stage == PLACE:
                place(w.heads, plan, cache, 0, 0, i, w.head_norms, s.qkv, s.queries)
            elif stage == ATTEND:
                attend(w.heads, plan, cache, 0, UNLIMITED, i, s.queries, scores, s.mixed)
            elif stage == GATHER:
                token = plan.logit_tokens[i]
                copy(s.joined[token, :size] if w.norms_residual else s.features[token], outputs[i])
                copy(s.mixed[token], s.gathered[i])
                cut(m, MATRIX_OF[stage], s.gathered[i], s.limbs[i])
            elif stage == NORM_MLP:
                normalise(outputs[i], w.norms[OF_MLP], w.eps, s.normed[i])
                cut(m, MATRIX_OF[stage], s.normed[i], s.limbs[i])
            elif stage == GATED:
                project_gated(m, MATRIX_OF[stage], i, s.normed, num_outputs, SILU, s.inner, work)
            elif stage == CUT_INNER:
                cut(m, MATRIX_OF[stage], s.inner[i], s.limbs[i])
            elif stage == NORM_HEAD:
                normalise(outputs[i], w.norms[OF_HEAD], w.eps, s.normed[i])
                if w.norms_output:
                    copy(s.normed[i], outputs[i])
                cut(m, MATRIX_OF[stage], s.normed[i], s.limbs[i])
            elif stage in (OUT, DOWN):
                inputs = s.gathered if stage == OUT else s.inner
                project_onto(m, MATRIX_OF[stage], i, inputs, num_outputs, outputs, work)
            else:
                inputs, places, out = s.normed, plan.places, logits
                if stage == FUSE:
                    inputs, places, out = s.hidden, plan.order, s.features
                elif stage == JOIN:
                    inputs, places, out = s.joined, plan.order, s.features
                elif stage == QKV:
                    inputs, places, out = s.normed if w.joins else s.joined, plan.order, s.qkv
                    i += first_panel(level, w)
                project(m, MATRIX_OF[stage], i, inputs, places, out, work)


def build(revision: int) -> Callable[..., None]:
    @entry
    def draft(board: Board, held: Held) -> None:
        """Execute the first level, then later ones until every row of the line is closed.

        held: `HeadsWeights`, `Cache`, `HeadsScratch`, the first `Level`, the later `Level`, `Line`.
        The later level has one token for each row of the line and is reused for all later levels.
        Without a line there is only the first level.
        """
        w, cache, s, first, later, line = held.value
        work = make_work(max(len(first.plan.ids), len(later.plan.ids)) + 0 * revision, s.limbs)
        run_levels(board, w, cache, s, first, later, line, work, make_scores(w.heads, cache))

    return draft


draft = build(sources())
