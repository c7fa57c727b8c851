"""The plan of a pass: its tokens, their positions and slots, and the slots that each token sees.

Tokens of all rows are put one after the other and cut into passes; nothing is padded, because every
token carries its own row and place.  A token of the text sees all slots up to its own.  A node of
a tree sees the slots before the tree, and then only its ancestors and itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from forerun.lean.page_tile import QUERIES
from forerun.models.feed import Feed

Ints = NDArray[np.int64]

MOST_TOKENS = 128  # in one pass: their activations should stay in a core's cache


class Plan(NamedTuple):
    """The tokens of one pass."""

    order: Ints  # (tokens,): 0, 1, 2, ...
    ids: Ints  # (tokens,)
    rows: Ints  # (tokens,)
    positions: Ints  # (tokens,): in the text
    slots: Ints  # (tokens,): in the cache; ascending within a row
    before: Ints  # (tokens,): each token sees this number of slots from the first on
    branch_at: Ints  # (tokens + 1,): where each token's further slots begin in `branch`
    branch: Ints  # further slots that are seen, ascending for each token
    tiles: (
        Ints  # (tiles, 3): first query, number of queries, key head; a tile has one row's queries
    )
    logit_tokens: Ints  # (logits,): tokens whose logits are needed
    places: Ints  # (logits,): rows of the output for their logits
    logit_of: Ints  # (tokens,): which of the logits is a token's, or -1


def no_plan() -> Plan:
    """A plan without tokens."""
    none = np.empty(0, np.int64)
    tiles = np.empty((0, 3), np.int64)
    return Plan(none, none, none, none, none, none, none, none, tiles, none, none, none)


class Lot(NamedTuple):
    """A run of tokens of one row, in the order of their slots."""

    row: int
    ids: Sequence[int]
    positions: Ints
    slots: Ints
    before: Ints
    branch: Ints  # further slots that each token sees, for one token after the other
    num_branch: Ints  # (tokens,): how many of these each token has
    places: Ints  # (tokens,): the row of the output for its logits, or -1

    @classmethod
    def of(cls, row: int, stored: int, feed: Feed, begin: int, places: Ints) -> Lot:
        """The tokens of a feed from number `begin` on, for a row that stores `stored` tokens."""
        end, trunk = len(feed.tokens), feed.trunk
        slots = np.arange(stored + begin, stored + end)
        ids, before = feed.tokens[begin:], slots + 1
        num_branch = np.zeros(end - begin, np.int64)
        if trunk == end:
            return cls(row, ids, slots, slots, before, num_branch[:0], num_branch, places)
        first = max(begin, trunk)  # node
        is_seen = feed.tree.ancestors[first - trunk :]
        before[first - begin :] = stored + trunk
        num_branch[first - begin :] = is_seen.sum(1)
        branch = stored + trunk + np.nonzero(is_seen)[1]
        positions = stored + feed.offsets(begin, end)
        return cls(row, ids, positions, slots, before, branch, num_branch, places)


def passes(
    lots: Sequence[Lot], num_queries: int, num_keys: int, *, logits_only: bool = False
) -> Iterator[Plan]:
    """Plans of passes over all tokens of some lots, MOST_TOKENS in each at most.

    num_queries, num_keys: the number of heads.
    logits_only: leave out the queries of tokens without logits.
    """
    if len(lots) == 1 and len(lots[0].slots) <= MOST_TOKENS and not len(lots[0].branch):
        lot = lots[0]
        has_logits = lot.places >= 0
        about = lot.row, len(lot.slots), has_logits.tobytes()
        plan = _of_one_row(*about, num_queries // num_keys, num_keys, logits_only)
        yield plan._replace(
            ids=np.array(lot.ids, np.int64),
            positions=lot.positions,
            slots=lot.slots,
            before=lot.before,
            places=lot.places[has_logits],
        )
        return
    rows = np.repeat([lot.row for lot in lots], [len(lot.slots) for lot in lots])
    branch_at = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(_joined([lot.num_branch for lot in lots]), out=branch_at[1:])
    branch = _joined([lot.branch for lot in lots])
    ids = np.array([token for lot in lots for token in lot.ids], np.int64)
    positions = _joined([lot.positions for lot in lots])
    slots = _joined([lot.slots for lot in lots])
    before = _joined([lot.before for lot in lots])
    places = _joined([lot.places for lot in lots])
    for begin in range(0, len(rows), MOST_TOKENS):
        end = min(begin + MOST_TOKENS, len(rows))
        span = slice(begin, end)
        order, logit_tokens = np.arange(end - begin), np.flatnonzero(places[span] >= 0)
        queried = logit_tokens if logits_only else order
        logit_of = np.full(end - begin, -1)
        logit_of[logit_tokens] = np.arange(len(logit_tokens))
        yield Plan(
            order=order,
            ids=ids[span],
            rows=rows[span],
            positions=positions[span],
            slots=slots[span],
            before=before[span],
            branch_at=branch_at[begin : end + 1] - branch_at[begin],
            branch=branch[branch_at[begin] : branch_at[end]],
            tiles=_tiles(rows[span], slots[span], queried, num_queries // num_keys, num_keys),
            logit_tokens=logit_tokens,
            places=places[span][logit_tokens],
            logit_of=logit_of,
        )


@lru_cache(64)
def _of_one_row(
    row: int, count: int, has_logits: bytes, group: int, num_keys: int, logits_only: bool
) -> Plan:
    """The part of a plan that all passes over `count` tokens of one text have in common.

    Most passes are of this kind, and making this part each time would take as long as some layers
    of a small model.  has_logits: a NumPy array of booleans as bytes, to be hashable.
    """
    order, rows = np.arange(count), np.full(count, row)
    logit_tokens = np.flatnonzero(np.frombuffer(has_logits, np.bool_))
    logit_of = np.full(count, -1)
    logit_of[logit_tokens] = np.arange(len(logit_tokens))
    queried = logit_tokens if logits_only else order
    return no_plan()._replace(
        order=order,
        rows=rows,
        branch_at=np.zeros(count + 1, np.int64),
        tiles=_tiles(rows, order, queried, group, num_keys),
        logit_tokens=logit_tokens,
        logit_of=logit_of,
    )


def _joined(parts: Sequence[Ints]) -> Ints:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _tiles(rows: Ints, slots: Ints, tokens: Ints, group: int, num_keys: int) -> Ints:
    """Divide the queries of tokens into tiles: (tiles, 3) of first query, count and key head.

    A tile has at most QUERIES queries of one row that share a key head; the tiles of a row are of
    about one size.  Threads take tiles in this order: the longest rows come first, so that no
    thread is left with one at the end, and tiles that read the same keys and values are neighbours.
    """
    is_edge = (tokens[1:] - tokens[:-1] != 1) | (rows[tokens[1:]] != rows[tokens[:-1]])
    edges = [0, *(is_edge.nonzero()[0] + 1).tolist(), len(tokens)]
    runs = [
        (int(tokens[begin]), int(tokens[end - 1])) for begin, end in pairwise(edges) if begin < end
    ]
    runs.sort(key=lambda run: -int(slots[run[1]]))
    tiles = []
    for begin, end in runs:
        first, last = begin * group, (end + 1) * group
        count = -(-(last - first) // QUERIES)
        ends = [first + (last - first) * i // count for i in range(count + 1)]
        spans = list(pairwise(ends))
        tiles += [(at, end - at, head) for head in range(num_keys) for at, end in spans]
    return np.array(tiles, np.int64).reshape(-1, 3)
