"""A pass of a Llama-family model: one call per thread, from token ids to logits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from forerun.lean.attention import Cache, HeadShape, attend, make_scores, place
from forerun.lean.crew import Board, share
from forerun.lean.jit import compiled, entry, inner, sources
from forerun.lean.linear import (
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
from forerun.lean.shape import HAS_DOT_PRODUCTS

STAGES_PER_LAYER = 10  # the head is the first two of one layer more
ENTER, PROJECT, PLACE, ATTEND, CUT_MIXED, OUT, NORM, GATED, CUT_INNER, DOWN = range(10)
MATRICES = 4  # of a layer: queries, keys and values; out; gate and up; down
MATRIX_OF = (0, 0, 0, 0, 1, 1, 2, 2, 3, 3)  # by stage: the one it multiplies, or the next does


class Weights(NamedTuple):
    """A model: its matrices, and what is not a matrix product."""

    matrices: Matrices
    embedding: Floats  # (vocabulary, hidden)
    norms: Floats  # (2 * layers + 1, hidden)
    head_norms: Floats  # (layers, 2, head size): of queries and keys
    heads: HeadShape
    eps: Any  # float32


class Watched(NamedTuple):
    """Hidden states that are asked for."""

    layers: Ints  # after so many layers, the last after the final norm too
    states: Floats  # (tokens, len(layers) * hidden)


class Scratch(NamedTuple):
    """What the tokens of a pass carry from stage to stage."""

    x: Floats  # (tokens, hidden): the residual stream
    normed: Floats  # (tokens, hidden)
    qkv: Floats  # (tokens, padded)
    queries: Floats  # (key heads, tokens * queries per key, head size)
    mixed: Floats  # (tokens, query heads * head size)
    inner: Floats  # (tokens, intermediate)
    limbs: Bytes  # (tokens, bytes): the inputs of the next matrix, where it takes limbs


@compiled
def num_stages(num_layers: int) -> int:
    return STAGES_PER_LAYER * num_layers + PROJECT + 1


@inner
def num_items(kind: int, is_head: bool, plan: Plan, w: Weights, s: Scratch, logits: Floats) -> Any:
    """How many pieces of work the threads share in a stage."""
    if kind == PROJECT:
        return num_panels(logits) if is_head else num_panels(s.qkv)
    if kind == ATTEND:
        return len(plan.tiles)
    if kind == GATED:
        return num_panels(s.inner)
    if kind in (OUT, DOWN):
        return num_panels(s.x)
    if kind in (CUT_MIXED, CUT_INNER) and not HAS_DOT_PRODUCTS:
        return 0
    return len(plan.ids)


@inner
def watch(
    watched: Watched, layer: int, is_head: bool, token: int, x: Floats, norm: Floats, eps: Any
) -> None:
    """Keep a token's states after so many layers, where they are asked for."""
    for i in range(len(watched.layers)):
        if watched.layers[i] == layer:
            kept = watched.states[token, i * x.size : (i + 1) * x.size]
            if is_head:
                normalise(x, norm, eps, kept)
            else:
                copy(x, kept)


@inner
def run_stages(
    board: Board, w: Weights, plan: Plan, cache: Cache, s: Scratch, watched: Watched,
    logits: Floats, work: Work, scores: Floats,
) -> None:  # fmt: skip
    """One loop over stages with one call of each kind in it: that compiles in half the time."""
    num_tokens, num_layers = len(plan.ids), len(w.head_norms)
    last = 2 * num_layers  # norm
    for stage in range(num_stages(num_layers)):
        layer, kind = divmod(stage, STAGES_PER_LAYER)
        is_head = layer == num_layers
        matrix = MATRICES * layer + MATRIX_OF[kind]
        for i in share(board, stage, num_items(kind, is_head, plan, w, s, logits)):
            if kind == ENTER:
                if layer == 0:
                    copy(w.embedding[plan.ids[i]], s.x[i])
                watch(watched, layer, is_head, i, s.x[i], w.norms[last], w.eps)
                if not is_head:
                    normalise(s.x[i], w.norms[2 * layer], w.eps, s.normed[i])
                    cut(w.matrices, matrix, s.normed[i], s.limbs[i])
                elif i < len(plan.logit_tokens):
                    normalise(s.x[plan.logit_tokens[i]], w.norms[last], w.eps, s.normed[i])
                    cut(w.matrices, matrix, s.normed[i], s.limbs[i])
            elif kind == PROJECT:
                places, out = (plan.places, logits) if is_head else (plan.order, s.qkv)
                project(w.matrices, matrix, i, s.normed, places, out, work)
            elif kind == PLACE:
                place(w.heads, plan, cache, layer, i, w.head_norms[layer], s.qkv, s.queries)
            elif kind == ATTEND:
                attend(w.heads, plan, cache, layer, i, s.queries, scores, s.mixed)
            elif kind == NORM:
                normalise(s.x[i], w.norms[2 * layer + 1], w.eps, s.normed[i])
                cut(w.matrices, matrix, s.normed[i], s.limbs[i])
            elif kind == CUT_MIXED:
                cut(w.matrices, matrix, s.mixed[i], s.limbs[i])
            elif kind == CUT_INNER:
                cut(w.matrices, matrix, s.inner[i], s.limbs[i])
            elif kind == GATED:
                project_gated(w.matrices, matrix, i, s.normed, num_tokens, s.inner, work)
            else:
                inputs = s.mixed if kind == OUT else s.inner
                project_onto(w.matrices, matrix, i, inputs, num_tokens, s.x, work)


def build(revision: int) -> Callable[..., None]:
    @entry
    def forward(
        board: Board, w: Weights, plan: Plan, cache: Cache, s: Scratch, watched: Watched,
        logits: Floats,
    ) -> None:  # fmt: skip
        """Logits (places, vocabulary); keys and values of the new tokens enter the cache."""
        work = make_work(len(plan.ids) + 0 * revision, s.limbs)
        run_stages(board, w, plan, cache, s, watched, logits, work, make_scores(w.heads, cache))

    return forward


forward = build(sources())
