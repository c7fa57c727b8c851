"""A pass of a Llama-family or Gemma 3 model: one call per thread, from token ids to logits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from forerun.lean.attention import (
    PAGE,
    Cache,
    HeadShape,
    attend,
    average,
    make_scores,
    place,
    score_keys,
    weigh,
)
from forerun.lean.crew import Board, share
from forerun.lean.held import Held
from forerun.lean.jit import entry, inner, sources
from forerun.lean.linear import (
    Bytes,
    Floats,
    Gate,
    Matrices,
    Work,
    cut,
    make_work,
    num_panels,
    project,
    project_gated,
    project_onto,
)
from forerun.lean.page_tile import QUERIES
from forerun.lean.plan import Ints, Plan
from forerun.lean.scalar import add_normalised, copy, copy_scaled, normalise
from forerun.lean.shape import HAS_DOT_PRODUCTS, LANES

STAGES_PER_LAYER = 12  # the head takes the first two stages of one more layer
(
    ENTER, PROJECT, PLACE, SCORE, WEIGH, ATTEND, CUT_MIXED, OUT, NORM, GATED, CUT_INNER, DOWN
) = range(STAGES_PER_LAYER)  # fmt: skip
MATRICES = 4  # of a layer: queries, keys and values; out; gate and up; down
MATRIX_OF = (0, 0, 0, 0, 0, 0, 1, 1, 2, 2, 3, 3)  # the matrix of each stage, or of the next that
# has one
SPLIT = 4 * PAGE  # slots in one item of SCORE
COLUMNS = max(32, LANES)  # columns of values in one item of ATTEND, where threads share a tile


class Weights(NamedTuple):
    """The weights of a model, and the numbers of its layers that are not weights."""

    matrices: Matrices
    embedding: Floats  # (vocabulary, hidden)
    embedding_scale: Any  # float32
    norms: Floats  # (2 * layers + 1, hidden): before attention, before the MLP, before the head
    post_norms: Floats  # (2 * layers, hidden): after attention and after the MLP; or (0, hidden)
    head_norms: Floats  # (layers, 2, head size): of queries and keys
    heads: HeadShape
    windows: Ints  # (layers,): how many tokens a token sees, itself included
    tables: Ints  # (layers,): the rotary table
    gate: Gate
    eps: Any  # float32


class Watched(NamedTuple):
    """The hidden states to keep: the layers after which they are read, and the array that they are
    written to."""

    layers: Ints  # states after this number of layers; after all of them, with the final norm
    states: Floats  # (tokens, len(layers) * hidden)


class Scratch(NamedTuple):
    """Activations of the tokens of a pass between its stages."""

    x: Floats  # (tokens, hidden): the residual stream
    added: Floats  # (tokens, hidden): outputs that are normed before they are added to x
    normed: Floats  # (tokens, hidden)
    qkv: Floats  # (tokens, padded)
    queries: Floats  # (key heads, tokens * queries per key, head size)
    mixed: Floats  # (tokens, query heads * head size)
    inner: Floats  # (tokens, intermediate)
    limbs: Bytes  # (tokens, bytes): the inputs of the next matrix, where it takes limbs


def num_stages(num_layers: int) -> int:
    """How many stages a pass over this number of layers and the head has."""
    return STAGES_PER_LAYER * num_layers + PROJECT + 1


@inner
def num_items(
    kind: int, is_head: bool, plan: Plan, w: Weights, s: Scratch, logits: Floats, split: Floats
) -> Any:
    """The number of items that the threads share in a stage."""
    if kind == PROJECT:
        return num_panels(logits) if is_head else num_panels(s.qkv)
    num_shared = num_shared_tiles(split)
    if kind == SCORE:
        return num_shared * num_splits(split) + len(plan.tiles) - num_shared
    if kind == WEIGH:
        return num_shared * QUERIES
    if kind == ATTEND:
        return num_shared * num_column_splits(w.heads)
    if kind == GATED:
        return num_panels(s.inner)
    if kind in (OUT, DOWN):
        return num_panels(s.x)
    if kind in (CUT_MIXED, CUT_INNER) and not HAS_DOT_PRODUCTS:
        return 0
    return len(plan.ids)


@inner
def num_shared_tiles(split: Floats) -> Any:
    """The number of attention tiles that threads share; these are the first tiles."""
    return len(split) // QUERIES


@inner
def num_splits(split: Floats) -> Any:
    """The largest number of parts into which the SCORE stage cuts a shared tile."""
    return (split.shape[1] + SPLIT - 1) // SPLIT


@inner
def num_column_splits(heads: HeadShape) -> Any:
    """The number of parts into which the ATTEND stage cuts a shared tile."""
    return (heads.wide + COLUMNS - 1) // COLUMNS


@inner
def attend_item(
    kind: int, i: int, w: Weights, plan: Plan, cache: Cache, layer: int, s: Scratch, split: Floats,
    scores: Floats,
) -> None:  # fmt: skip
    """Execute one item of the attention stages SCORE, WEIGH and ATTEND.

    Items of SCORE are first the parts of tiles that threads share, then whole tiles.  The whole
    ones are the largest items, and each thread has equally many, so they come last.
    """
    window = w.windows[layer]
    whole = i - num_shared_tiles(split) * (num_splits(split) - 1)  # the tile of a whole item
    if kind == SCORE and whole >= num_shared_tiles(split):
        attend(w.heads, plan, cache, layer, window, whole, s.queries, scores, s.mixed)
    elif kind == SCORE:
        tile, part = divmod(i, num_splits(split))
        begin, end = part * SPLIT, (part + 1) * SPLIT
        score_keys(
            w.heads, plan, cache, layer, window, tile, begin, end, s.queries, split, tile * QUERIES
        )
    elif kind == WEIGH:
        tile, query = divmod(i, QUERIES)
        if query < plan.tiles[tile, 1]:
            weigh(w.heads, plan, window, tile, query, split[i])
    else:
        tile, part = divmod(i, num_column_splits(w.heads))
        column, last = part * COLUMNS, min((part + 1) * COLUMNS, w.heads.wide)
        average(
            w.heads, plan, cache, layer, window, tile, column, last, split, tile * QUERIES, s.mixed
        )


@inner
def watch(
    watched: Watched, layer: int, is_head: bool, token: int, x: Floats, norm: Floats, eps: Any
) -> None:
    """Keep a token's hidden state x after `layer` layers, if that layer is watched."""
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
    logits: Floats, split: Floats, work: Work, scores: Floats,
) -> None:  # fmt: skip
    """Execute all stages of a pass, in one loop.

    The loop contains each call once, which halves the time to compile it.
    """
    num_tokens, num_layers = len(plan.ids), len(w.head_norms)
    last = 2 * num_layers  # norm
    has_post_norms = len(w.post_norms) > 0
    for stage in range(len(board)):
        layer, kind = divmod(stage, STAGES_PER_LAYER)
        is_head = layer == num_layers
        matrix = MATRICES * layer + MATRIX_OF[kind]
        for i in share(board, stage, num_items(kind, is_head, plan, w, s, logits, split)):
            if kind == ENTER:
                if layer == 0:
                    copy_scaled(w.embedding[plan.ids[i]], w.embedding_scale, s.x[i])
                elif has_post_norms:
                    add_normalised(s.added[i], w.post_norms[2 * layer - 1], w.eps, s.x[i])
                watch(watched, layer, is_head, i, s.x[i], w.norms[last], w.eps)
                at = plan.logit_of[i] if is_head else i
                if at >= 0:
                    normalise(s.x[i], w.norms[2 * layer], w.eps, s.normed[at])
                    cut(w.matrices, matrix, s.normed[at], s.limbs[at])
            elif kind == PROJECT or (has_post_norms and kind in (OUT, DOWN)):
                inputs, places, out = s.normed, plan.order, s.qkv
                if kind == OUT:
                    inputs, out = s.mixed, s.added
                elif kind == DOWN:
                    inputs, out = s.inner, s.added
                elif is_head:
                    places, out = plan.places, logits
                project(w.matrices, matrix, i, inputs, places, out, work)
            elif kind == PLACE:
                norms, table = w.head_norms[layer], w.tables[layer]
                place(w.heads, plan, cache, layer, table, i, norms, s.qkv, s.queries)
            elif kind in (SCORE, WEIGH, ATTEND):
                attend_item(kind, i, w, plan, cache, layer, s, split, scores)
            elif kind == NORM:
                if has_post_norms:
                    add_normalised(s.added[i], w.post_norms[2 * layer], w.eps, s.x[i])
                normalise(s.x[i], w.norms[2 * layer + 1], w.eps, s.normed[i])
                cut(w.matrices, matrix, s.normed[i], s.limbs[i])
            elif kind == CUT_MIXED:
                cut(w.matrices, matrix, s.mixed[i], s.limbs[i])
            elif kind == CUT_INNER:
                cut(w.matrices, matrix, s.inner[i], s.limbs[i])
            elif kind == GATED:
                project_gated(w.matrices, matrix, i, s.normed, num_tokens, w.gate, s.inner, work)
            else:
                inputs = s.mixed if kind == OUT else s.inner
                project_onto(w.matrices, matrix, i, inputs, num_tokens, s.x, work)


def build(revision: int) -> Callable[..., None]:
    @entry
    def forward(
        board: Board, held: Held, plan: Plan, watched: Watched, logits: Floats, split: Floats
    ) -> None:
        """Fill in logits (places, vocabulary), and store the tokens' keys and values in the cache.

        held: `Weights`, `Cache` and `Scratch`.
        split: memory (shared tiles * QUERIES, score_columns) for the first tiles of attention,
        which threads share; without rows, each thread takes whole tiles.
        """
        w, cache, s = held.value
        work = make_work(len(plan.ids) + 0 * revision, s.limbs)
        scores = make_scores(w.heads, cache)
        run_stages(board, w, plan, cache, s, watched, logits, split, work, scores)

    return forward


forward = build(sources())
