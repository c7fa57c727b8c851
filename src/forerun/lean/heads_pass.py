"""A pass of a drafting network (drafters/heads/network.py): one call per thread.

Keys and values are made of every token; only those whose logits are wanted go through the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from forerun.lean.attention import Cache, Heads, attend, place
from forerun.lean.crew import Board, share
from forerun.lean.jit import compiled, entry, sources
from forerun.lean.linear import (
    Floats,
    Matrices,
    make_work,
    num_panels,
    project,
    project_gated,
    project_onto,
)
from forerun.lean.plan import Plan
from forerun.lean.scalar import copy, normalise
from forerun.lean.shape import TOKENS

NUM_STAGES = 13
(
    NORM_STATES, FUSE, NORM_INPUTS, QKV, PLACE, ATTEND,
    GATHER, OUT, NORM_MLP, GATED, DOWN, NORM_HEAD, HEAD,
) = range(NUM_STAGES)  # fmt: skip
MATRIX_OF = (0, 0, 0, 1, 0, 0, 0, 2, 0, 3, 4, 0, 5)  # by stage
OF_FEATURE, OF_EMBEDDING, OF_MLP, OF_HEAD = range(4)  # the norms


class HeadsWeights(NamedTuple):
    """A network, and the embedding of its target."""

    matrices: Matrices
    embedding: Floats  # (vocabulary, hidden)
    layer_norms: Floats  # (layers that are read, hidden)
    norms: Floats  # (4, hidden)
    head_norms: Floats  # (2, head size): none of these networks has them
    heads: Heads
    eps: Any  # float32


class HeadsScratch(NamedTuple):
    """What the tokens of a pass carry from stage to stage."""

    hidden: Floats  # (tokens, layers * hidden): normed states of the target
    features: Floats  # (tokens, hidden)
    joined: Floats  # (tokens, 2 * hidden)
    qkv: Floats  # (tokens, heads * head size)
    queries: Floats  # (key heads, tokens * queries per key, head size)
    mixed: Floats  # (tokens, query heads * head size)
    gathered: Floats  # the same, of those wanted
    normed: Floats  # (tokens, hidden)
    inner: Floats  # (tokens, mlp size)


@compiled
def num_items(
    stage: int, plan: Plan, w: HeadsWeights, s: HeadsScratch, hidden: Floats, logits: Floats
) -> Any:
    """How many pieces of work the threads share in a stage."""
    if stage in (NORM_STATES, FUSE) and len(hidden) == 0:
        return 0
    if stage > ATTEND and len(plan.wanted) == 0:
        return 0
    if stage in (FUSE, OUT, DOWN):
        return num_panels(s.features)
    if stage == QKV:
        return num_panels(s.qkv)
    if stage == ATTEND:
        return len(plan.tiles) * w.heads.keys
    if stage == GATED:
        return num_panels(s.inner)
    if stage == HEAD:
        return num_panels(logits)
    return len(plan.wanted) if stage > ATTEND else len(plan.ids)


def build(revision: int) -> Callable[..., None]:
    @entry
    def draft(
        board: Board, w: HeadsWeights, plan: Plan, cache: Cache, s: HeadsScratch, hidden: Floats,
        outputs: Floats, logits: Floats,
    ) -> None:  # fmt: skip
        """Outputs (wanted, hidden) and logits (places, draft vocabulary).

        hidden: the target's states (tokens, layers * hidden), or none where the scratch holds the
        features already.
        """
        m, size = w.matrices, w.embedding.shape[1]
        num_wanted, work = len(plan.wanted), make_work(len(plan.ids))
        scores = np.empty((TOKENS, cache.slots + 16), np.float32)  # no power of two: caches mind
        for stage in range(0 * revision, NUM_STAGES):
            for i in share(board, stage, num_items(stage, plan, w, s, hidden, logits)):
                if stage == NORM_STATES:
                    for layer in range(len(w.layer_norms)):
                        begin, end = layer * size, (layer + 1) * size
                        own = s.hidden[i, begin:end]
                        normalise(hidden[i, begin:end], w.layer_norms[layer], w.eps, own)
                elif stage == NORM_INPUTS:
                    normalise(s.features[i], w.norms[OF_FEATURE], w.eps, s.joined[i, :size])
                    embedding = w.embedding[plan.ids[i]]
                    normalise(embedding, w.norms[OF_EMBEDDING], w.eps, s.joined[i, size:])
                elif stage == PLACE:
                    place(w.heads, plan, cache, 0, i, w.head_norms, s.qkv, s.queries)
                elif stage == ATTEND:
                    tile, head = divmod(i, w.heads.keys)
                    sums = work.sums
                    attend(w.heads, plan, cache, 0, tile, head, s.queries, scores, sums, s.mixed)
                elif stage == GATHER:
                    copy(s.features[plan.wanted[i]], outputs[i])
                    copy(s.mixed[plan.wanted[i]], s.gathered[i])
                elif stage == NORM_MLP:
                    normalise(outputs[i], w.norms[OF_MLP], w.eps, s.normed[i])
                elif stage == GATED:
                    project_gated(m, MATRIX_OF[stage], i, s.normed, num_wanted, s.inner, work)
                elif stage == NORM_HEAD:
                    normalise(outputs[i], w.norms[OF_HEAD], w.eps, s.normed[i])
                elif stage in (OUT, DOWN):
                    inputs = s.gathered if stage == OUT else s.inner
                    project_onto(m, MATRIX_OF[stage], i, inputs, num_wanted, outputs, work)
                else:
                    inputs, places, out = s.normed, plan.places, logits
                    if stage == FUSE:
                        inputs, places, out = s.hidden, plan.order, s.features
                    elif stage == QKV:
                        inputs, places, out = s.joined, plan.order, s.qkv
                    project(m, MATRIX_OF[stage], i, inputs, places, out, work)

    return draft


draft = build(sources())
