"""What the tokens of a pass are, where they stand and what they see.

Tokens of all rows are put behind each other and cut into passes; nothing is padded, because every
token carries its own row and place.  A token of the text sees all slots up to its own.  A node of
a tree sees the slots before the tree, and then only its ancestors and itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from forerun.lean.shape import TOKENS
from forerun.models.feed import Feed

Ints = NDArray[np.int64]

MOST_TOKENS = 128  # in one pass: what they carry should stay in a core's cache


class Plan(NamedTuple):
    """One pass."""

    order: Ints  # (tokens,): 0, 1, 2, ...
    ids: Ints  # (tokens,)
    rows: Ints  # (tokens,)
    positions: Ints  # (tokens,): in the text
    slots: Ints  # (tokens,): in the cache; ascending within a row
    before: Ints  # (tokens,): so many slots from the first are seen
    branch_at: Ints  # (tokens + 1,): where each token's further slots begin in `branch`
    branch: Ints  # further slots that are seen, ascending for each token
    tiles: Ints  # (tiles, 2): first query and number of queries; a tile is of one row
    wanted: Ints  # (logits,): tokens
    places: Ints  # (logits,): where their logits go


def no_plan() -> Plan:
    """A pass over nothing."""
    none = np.empty(0, np.int64)
    tiles = np.empty((0, 2), np.int64)
    return Plan(none, none, none, none, none, none, none, none, tiles, none, none)


class Lot(NamedTuple):
    """Tokens of one row, in the order of their slots."""

    row: int
    ids: Sequence[int]
    positions: Ints
    slots: Ints
    before: Ints
    branch: Ints  # of all tokens, one after the other
    num_branch: Ints  # (tokens,)
    places: Ints  # (tokens,): where its logits go, or -1

    @classmethod
    def of(cls, row: int, stored: int, feed: Feed, begin: int, places: Ints) -> Lot:
        """The tokens from `begin` on that a row of so many stored tokens is fed."""
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


def passes(lots: Sequence[Lot], group: int, wanted_only: bool = False) -> Iterator[Plan]:
    """All tokens, in as many passes as they need.

    `group` queries share a key head; those of tokens without logits are left out if told so.
    """
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
        own = slice(begin, end)
        wanted = np.flatnonzero(places[own] >= 0)
        yield Plan(
            order=np.arange(end - begin),
            ids=ids[own],
            rows=rows[own],
            positions=positions[own],
            slots=slots[own],
            before=before[own],
            branch_at=branch_at[begin : end + 1] - branch_at[begin],
            branch=branch[branch_at[begin] : branch_at[end]],
            tiles=_tiles(rows[own], wanted if wanted_only else np.arange(end - begin), group),
            wanted=wanted,
            places=places[own][wanted],
        )


def _joined(parts: Sequence[Ints]) -> Ints:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _tiles(rows: Ints, tokens: Ints, group: int) -> Ints:
    """Runs of at most TOKENS queries of one row: first and count, (tiles, 2)."""
    is_edge = (tokens[1:] - tokens[:-1] != 1) | (rows[tokens[1:]] != rows[tokens[:-1]])
    edges = [0, *(is_edge.nonzero()[0] + 1).tolist(), len(tokens)]
    tiles = []
    for begin, end in pairwise(edges):
        if begin < end:
            first, last = int(tokens[begin]) * group, (int(tokens[end - 1]) + 1) * group
            tiles += [(at, min(TOKENS, last - at)) for at in range(first, last, TOKENS)]
    return np.array(tiles, np.int64).reshape(-1, 2)
