"""Combines the tokens of several rows into one padded pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from forerun.models.attention import Branches
from forerun.models.feed import Feed


@dataclass(frozen=True)
class FeedPart:
    """Tokens `begin` to `end` of the feed of one row."""

    row: int
    stored: int  # tokens in the row, before the feed
    feed: Feed
    begin: int
    end: int
    num_logits: int  # the last tokens whose logits are needed

    def __len__(self) -> int:
        return self.end - self.begin

    @property
    def slot(self) -> int:
        """The slot in the row of the first token."""
        return self.stored + self.begin

    @property
    def tokens(self) -> Sequence[int]:
        """The ids of the tokens."""
        return self.feed.tokens[self.begin : self.end]

    @property
    def positions(self) -> NDArray[np.int64]:
        """The positions of the tokens in the row's text."""
        return self.stored + self.feed.offsets(self.begin, self.end)


def plan(parts: Sequence[FeedPart], width: int) -> NDArray[np.int64]:
    """Ids, positions, slots and rows as one array (4, R, N), which takes one copy to the device.

    Padding repeats the position of the row's last token, so it is valid for a learned position
    table.  It is written to the slots after that token.
    """
    made = np.zeros((4, len(parts), width), np.int64)
    for index, part in enumerate(parts):
        positions = part.positions
        made[0, index, : len(part)] = part.tokens
        made[1, index] = positions[-1]
        made[1, index, : len(part)] = positions
        made[2, index] = part.slot + np.arange(width)
        made[3, index] = part.row
    return made


def branches(parts: Sequence[FeedPart], width: int, end: int, device: Any) -> Branches | None:
    """The trees of a pass whose keys end at slot `end`; None if all rows are chains."""
    most = max(len(part.feed.tree) for part in parts)
    if most == 0:
        return None
    first = np.full((len(parts), 1), end)
    positions = np.zeros((len(parts), most), np.int64)
    is_seen = np.zeros((len(parts), width, most), bool)
    for index, part in enumerate(parts):
        trunk, tree = part.feed.trunk, part.feed.tree
        if len(tree) > 0:
            first[index] = part.stored + trunk
            positions[index, : len(tree)] = part.stored + trunk + np.array(tree.depths)
            nodes = np.minimum(np.arange(part.begin, part.begin + width), part.end - 1) - trunk
            in_tree = nodes >= 0  # padding sees what the last token sees
            is_seen[index, in_tree, : len(tree)] = tree.ancestors[nodes[in_tree]]
    return Branches(*(torch.from_numpy(x).to(device) for x in (first, positions, is_seen)))


def columns(parts: Sequence[FeedPart]) -> tuple[int | list[int], list[list[int]] | None]:
    """The columns of a padded pass to compute logits for, and the places of each row's among them.

    Only columns that some row needs are computed, because the vocabulary is the widest axis by far.
    The first result is a number of last columns or a list.  The second (R, max N) is None if every
    row needs exactly the computed columns.
    """
    counts = [len(part) for part in parts]
    num_logits = [part.num_logits for part in parts]
    width, most = max(counts), max(num_logits)
    firsts = [count - asked for count, asked in zip(counts, num_logits, strict=True)]
    if min(firsts) == max(firsts):
        return width - firsts[0], None
    needed = sorted(
        {first + j for first, n in zip(firsts, num_logits, strict=True) for j in range(n)}
    )
    where = {column: index for index, column in enumerate(needed)}
    at = [
        [where[first + min(j, asked - 1)] for j in range(most)]
        for first, asked in zip(firsts, num_logits, strict=True)
    ]
    is_suffix = needed[0] == width - len(needed)
    return (len(needed) if is_suffix else needed), at
