"""The rows of the lean pass: keys and values in pages, scored by all layers or by the first
ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from forerun.lean.attention import score_columns
from forerun.lean.crew import Crew
from forerun.lean.forward import Scratch, Watched, Weights, forward, num_stages
from forerun.lean.held import Holder
from forerun.lean.linear import Floats, make_limbs
from forerun.lean.packed import Embedding
from forerun.lean.page_tile import QUERIES
from forerun.lean.pages import Page, Pages, Rotary
from forerun.lean.plan import MOST_TOKENS, Lot, Plan, passes
from forerun.lean.shape import TOKENS
from forerun.models.base import Parents
from forerun.models.feed import Feed, feeds
from forerun.models.hidden_states import History
from forerun.models.path_rows import PathRows

PER_LAYER = 4  # matrices

FEW_TILES = 8  # per thread: with more, threads share no tile
LONG = 256  # tokens: in shorter texts, threads share no tile
NO_SPLIT = np.empty((0, 0), np.float32)


class Beginning(NamedTuple):
    """A copy of the first tokens of a text with their keys, values and states, from which rows can
    continue."""

    tokens: Sequence[int]
    pages: Sequence[Page]  # shared by all rows that begin with them
    states: Floats  # (tokens, layers * hidden): states of the watched layers

    @property
    def num_bytes(self) -> int:
        """The memory of keys, values and states."""
        return sum(page.numbers.nbytes for page in self.pages) + self.states.nbytes


class LeanRows(PathRows):
    """The rows of one model; implements the methods of `LanguageModel` without their checks."""

    def __init__(
        self,
        weights: Weights,
        rotary: Rotary,
        crew: Crew,
        num_rows: int,
        embedding: Embedding | None = None,
    ) -> None:
        super().__init__(num_rows)
        self._embedding = embedding  # whose rows are written when they are needed
        self.layers: tuple[int, ...] = ()  # watched layers
        self.is_read_on_host = False  # return logits as NumPy arrays even where torch is loaded
        self._seen = [np.empty((0, 0), np.float32)] * num_rows
        self._weights = weights
        self._crew = crew
        self._pages = Pages(len(weights.head_norms), num_rows, weights.heads, rotary)
        self._scratch = _scratch(weights, TOKENS)
        self._split = NO_SPLIT
        self._holder = Holder()

    def score(
        self,
        rows: Sequence[int],
        tokens: Sequence[Sequence[int]],
        num_logits: Sequence[int],
        parents: Sequence[Parents | None] | None = None,
    ) -> Floats:
        """Logits (R, max(num_logits), V)."""
        fed, lots = feeds(tokens, parents), []
        width, vocab = max(num_logits), len(self._weights.embedding)
        for index, (row, feed, count) in enumerate(zip(rows, fed, num_logits, strict=True)):
            end = len(feed.tokens)
            known = self._fed[row].shared(feed, end - count)
            places = np.arange(index * width + count - (end - known), index * width + count)
            if count < end - known:
                places[:-count] = -1
            lots.append(Lot.of(row, self.lengths[row], feed, known, places))
            self.forget(row, known)  # if the pass is interrupted, its scores must not be reused
        for lot in lots:
            self._pages.reserve(lot.row, int(lot.slots[0]), int(lot.slots[-1]) + 1)
        heads = self._weights.heads
        logits = np.empty((len(rows) * width, vocab), np.float32)
        seen = [self._pass(plan, logits) for plan in passes(lots, heads.queries, heads.keys)]
        if self.layers:
            self._see(lots, seen[0] if len(seen) == 1 else np.concatenate(seen))
        for row, feed in zip(rows, fed, strict=True):
            self._fed[row] = feed
        return logits.reshape(len(rows), width, vocab)

    def copy_prefix(self, source: int, row: int, length: int) -> int:
        """Let an empty row share the pages that hold the first tokens of `source`."""
        length = min(length, self.lengths[source])
        self._pages.share(self._pages.of_row(source, length), row)
        return self._set_prefix(source, row, length)

    def watch(self, layers: Sequence[int]) -> None:
        """Keep states of these layers from now on; scores made before cannot be reused."""
        self.layers = tuple(layers)
        self._history = History(self.lengths, np.concatenate)
        for row in range(len(self.lengths)):
            self._seen[row] = np.empty((0, self._width), np.float32)
            self.forget(row)

    def forget(self, row: int, known: int = 0) -> None:
        self._fed[row] = Feed()
        self._seen[row] = self._seen[row][:known]

    def copy_out(self, row: int, count: int) -> Beginning:
        """A copy of the first `count` tokens of a row that was empty before its last score."""
        return Beginning(
            tokens=self._fed[row].tokens[:count],
            pages=self._pages.copy_out(row, count),
            states=self._seen[row][:count].copy(),
        )

    def copy_in(self, row: int, begun: Beginning) -> None:
        """Let an empty row continue from a copy, as if it had just been fed these tokens; the
        watched layers must be the same."""
        self._pages.share(begun.pages, row)
        self._fed[row] = Feed(begun.tokens)
        self._seen[row] = begun.states

    @property
    def _width(self) -> int:
        """The size of a token's watched states: layers * hidden."""
        return len(self.layers) * int(self._weights.embedding.shape[1])

    def _see(self, lots: Sequence[Lot], states: Floats) -> None:
        """Append the states of newly scored tokens to those of earlier scores of the same round."""
        begin = 0
        for lot in lots:
            seen, end = self._seen[lot.row], begin + len(lot.slots)
            part = states[begin:end]
            self._seen[lot.row] = np.concatenate([seen, part]) if len(seen) else part
            begin = end

    def _states(self, row: int, path: Sequence[int]) -> Any:
        if isinstance(path, range):  # the usual case, which slices make cheaper
            return self._seen[row][path.start : path.stop].copy()
        return super()._states(row, path)

    def _move(self, row: int, sources: Any, targets: Any) -> None:
        self._pages.move(row, sources, targets)

    def _cut(self, row: int, length: int) -> None:
        self._pages.cut(row, length)

    def _pass(self, plan: Plan, logits: Floats) -> Floats:
        """Run a pass that fills in logits; returns the watched states (tokens, layers * hidden)."""
        weights, count = self._weights, len(plan.ids)
        if self._embedding is not None:
            self._embedding.need(plan.ids)
        if count > len(self._scratch.x):
            self._scratch = _scratch(weights, min(MOST_TOKENS, 2 * count))
        watched = Watched(
            layers=np.array(self.layers, np.int64),
            states=np.empty((count, self._width), np.float32),
        )
        self._crew.run(
            num_stages(len(weights.head_norms)),
            forward,
            self._holder(weights, self._pages.cache, self._scratch),
            plan,
            watched,
            logits,
            self._split_for(plan),
        )
        return watched.states

    def _split_for(self, plan: Plan) -> Floats:
        """Memory (shared tiles * QUERIES, columns) for the tiles of attention that threads share.

        Tiles are shared only where they are few and texts are long, because moving data from one
        thread's cache to another's is slow.  With one text, threads take equally many whole tiles
        and share the remainder.  With several texts all tiles are shared, so that no thread is left
        alone with the longest.
        """
        size = self._crew.size
        if size == 1 or len(plan.tiles) > FEW_TILES * size or max(plan.slots.tolist()) < LONG:
            return NO_SPLIT
        is_alone = bool((plan.rows == plan.rows[0]).all())
        rows = QUERIES * (len(plan.tiles) % size if is_alone else len(plan.tiles))
        columns = score_columns(self._pages.cache.pages.shape[1], self._weights.heads.wide)
        if len(self._split) < rows or self._split.shape[1] != columns:
            self._split = np.empty((rows, columns), np.float32)
        return self._split[:rows]


def _scratch(weights: Weights, num_tokens: int) -> Scratch:
    """Memory for the activations of passes of at most `num_tokens` tokens."""
    heads, m = weights.heads, weights.matrices
    hidden, group = weights.embedding.shape[1], heads.queries // heads.keys
    return Scratch(
        x=np.empty((num_tokens, hidden), np.float32),
        added=np.empty((num_tokens, hidden), np.float32),
        normed=np.empty((num_tokens, hidden), np.float32),
        qkv=np.empty((num_tokens, m.output_at[1]), np.float32),
        queries=np.empty((heads.keys, num_tokens * group, heads.size), np.float32),
        mixed=np.empty((num_tokens, heads.queries * heads.size), np.float32),
        inner=np.empty((num_tokens, m.depth[3]), np.float32),
        limbs=make_limbs(m, num_tokens),
    )


class ShallowRows(LeanRows):
    """The rows of a whole model, with its lengths and pages, scored by its first layers only.

    Uncommitted scores are kept apart from those of the whole model.
    """

    def __init__(self, whole: LeanRows, num_layers: int) -> None:
        vars(self).update(vars(whole))
        self._weights = first_layers(whole._weights, num_layers)
        self._fed = [Feed()] * len(self.lengths)
        self.layers, self._history = (), None


def first_layers(weights: Weights, num_layers: int) -> Weights:
    """Weights of the first layers and the head, in the memory of the whole model."""
    m = weights.matrices
    used = [*range(PER_LAYER * num_layers), len(m.depth) - 1]  # the last is the head
    return weights._replace(
        matrices=m._replace(
            depth=m.depth[used], takes_limbs=m.takes_limbs[used], output_at=m.output_at[used]
        ),
        norms=np.concatenate([weights.norms[: 2 * num_layers], weights.norms[-1:]]),
        post_norms=weights.post_norms[: 2 * num_layers],
        head_norms=weights.head_norms[:num_layers],
        windows=weights.windows[:num_layers],
        tables=weights.tables[:num_layers],
    )
