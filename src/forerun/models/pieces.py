"""How the tokens of several rows become one padded pass."""

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
class Piece:
    """The tokens from `begin` to `end` of what a row is fed."""

    row: int
    stored: int  # tokens in the row, before the feed
    feed: Feed
    begin: int
    end: int
    num_logits: int  # how many of the last tokens are asked for their logits

    def __len__(self) -> int:
        return self.end - self.begin

    @property
    def slot(self) -> int:
        """Where the first token is written."""
        return self.stored + self.begin

    @property
    def tokens(self) -> Sequence[int]:
        return self.feed.tokens[self.begin : self.end]

    @property
    def positions(self) -> NDArray[np.int64]:
        return self.stored + self.feed.offsets(self.begin, self.end)


def plan(pieces: Sequence[Piece], width: int) -> NDArray[np.int64]:
    """Ids, positions, slots and rows as one array (4, R, N), so one copy reaches the device.

    Padding repeats the position of the row's last token, which a learned table surely has, but
    is written to the slots that follow it.
    """
    made = np.zeros((4, len(pieces), width), np.int64)
    for index, piece in enumerate(pieces):
        positions = piece.positions
        made[0, index, : len(piece)] = piece.tokens
        made[1, index] = positions[-1]
        made[1, index, : len(piece)] = positions
        made[2, index] = piece.slot + np.arange(width)
        made[3, index] = piece.row
    return made


def branches(pieces: Sequence[Piece], width: int, end: int, device: Any) -> Branches | None:
    """The trees of a pass whose keys end at `end`; None where all rows are chains."""
    most = max(len(piece.feed.tree) for piece in pieces)
    if most == 0:
        return None
    first = np.full((len(pieces), 1), end)
    positions = np.zeros((len(pieces), most), np.int64)
    is_seen = np.zeros((len(pieces), width, most), bool)
    for index, piece in enumerate(pieces):
        trunk, tree = piece.feed.trunk, piece.feed.tree
        if len(tree) > 0:
            first[index] = piece.stored + trunk
            positions[index, : len(tree)] = piece.stored + trunk + np.array(tree.depths)
            nodes = np.minimum(np.arange(piece.begin, piece.begin + width), piece.end - 1) - trunk
            in_tree = nodes >= 0  # padding repeats what the last token sees
            is_seen[index, in_tree, : len(tree)] = tree.ancestors[nodes[in_tree]]
    return Branches(*(torch.from_numpy(part).to(device) for part in (first, positions, is_seen)))


def columns(pieces: Sequence[Piece]) -> tuple[int | list[int], list[list[int]] | None]:
    """Which columns of a padded pass to project, and where each row's logits are among them.

    Only columns some row asked for are projected: the vocabulary is the widest axis by far. The
    second result (R, max N) is None when the projected columns already are the answer.
    """
    counts = [len(piece) for piece in pieces]
    num_logits = [piece.num_logits for piece in pieces]
    width, most = max(counts), max(num_logits)
    firsts = [count - wanted for count, wanted in zip(counts, num_logits, strict=True)]
    if min(firsts) == max(firsts):
        return width - firsts[0], None
    needed = sorted(
        {first + j for first, n in zip(firsts, num_logits, strict=True) for j in range(n)}
    )
    where = {column: index for index, column in enumerate(needed)}
    at = [
        [where[first + min(j, wanted - 1)] for j in range(most)]
        for first, wanted in zip(firsts, num_logits, strict=True)
    ]
    is_suffix = needed[0] == width - len(needed)
    return (len(needed) if is_suffix else needed), at
