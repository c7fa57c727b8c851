"""A pass of a Llama-family model: one call per thread, from token ids to logits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from forerun.lean.attention import Cache, Heads, Plan, attend, place
from forerun.lean.crew import Board, share
from forerun.lean.jit import entry, sources
from forerun.lean.linear import (
    Floats,
    Matrices,
    num_panels,
    project,
    project_gated,
    project_onto,
)
from forerun.lean.scalar import copy, normalise
from forerun.lean.tile import LANES, TOKENS

STAGES_PER_LAYER, STAGES_AFTER = 8, 2
QKV, OUT, GATED, DOWN = range(4)  # the matrices of a layer, in this order


class Weights(NamedTuple):
    """A model: its matrices, and what is not a matrix product."""

    matrices: Matrices
    embedding: Floats  # (vocabulary, hidden)
    norms: Floats  # (2 * layers + 1, hidden)
    head_norms: Floats  # (layers, 2, head size): of queries and keys
    heads: Heads
    eps: Any  # float32


class Scratch(NamedTuple):
    """What the tokens of a pass carry from stage to stage."""

    x: Floats  # (tokens, hidden): the residual stream
    normed: Floats  # (tokens, hidden)
    qkv: Floats  # (tokens, padded)
    queries: Floats  # (key heads, tokens * queries per key, head size)
    mixed: Floats  # (tokens, query heads * head size)
    inner: Floats  # (tokens, intermediate)


def build(revision: int) -> Callable[..., None]:
    @entry
    def forward(
        board: Board, w: Weights, plan: Plan, cache: Cache, s: Scratch, logits: Floats
    ) -> None:
        """Logits (places, vocabulary); keys and values of the new tokens enter the cache."""
        num_tokens, num_layers = len(plan.ids), len(w.head_norms)
        block = np.empty((TOKENS, LANES), np.float32)
        gate = np.empty((TOKENS, LANES), np.float32)
        scores = np.empty((TOKENS, cache.slots + 16), np.float32)  # no power of two: caches mind
        stage = 0 * revision
        for layer in range(num_layers):
            m, index = w.matrices, 4 * layer
            for i in share(board, stage, num_tokens):
                if layer == 0:
                    copy(w.embedding[plan.ids[i]], s.x[i])
                normalise(s.x[i], w.norms[2 * layer], w.eps, s.normed[i])
            for i in share(board, stage + 1, num_panels(s.qkv)):
                project(m, index + QKV, i, s.normed, plan.order, s.qkv, block)
            for i in share(board, stage + 2, num_tokens):
                place(w.heads, plan, cache, layer, i, w.head_norms[layer], s.qkv, s.queries)
            for i in share(board, stage + 3, len(plan.tiles) * w.heads.keys):
                tile, head = divmod(i, w.heads.keys)
                attend(w.heads, plan, cache, layer, tile, head, s.queries, scores, block, s.mixed)
            for i in share(board, stage + 4, num_panels(s.x)):
                project_onto(m, index + OUT, i, s.mixed, num_tokens, s.x, block)
            for i in share(board, stage + 5, num_tokens):
                normalise(s.x[i], w.norms[2 * layer + 1], w.eps, s.normed[i])
            for i in share(board, stage + 6, num_panels(s.inner)):
                project_gated(m, index + GATED, i, s.normed, num_tokens, s.inner, block, gate)
            for i in share(board, stage + 7, num_panels(s.x)):
                project_onto(m, index + DOWN, i, s.inner, num_tokens, s.x, block)
            stage += STAGES_PER_LAYER
        for i in share(board, stage, len(plan.wanted)):
            normalise(s.x[plan.wanted[i]], w.norms[2 * num_layers], w.eps, s.normed[i])
        for i in share(board, stage + 1, num_panels(logits)):
            project(w.matrices, 4 * num_layers, i, s.normed, plan.places, logits, block)

    return forward


forward = build(sources())
