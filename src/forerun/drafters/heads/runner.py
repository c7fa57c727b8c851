"""The interface of runners, which compute a drafting network for the rows of a batch.

Each row holds *verified* entries, one per token the target has processed, and after them
*tentative* nodes: guessed tokens that form a tree. With one layer, later entries need only the keys
and values of earlier ones. So most of a prompt is only projected to keys and values, and only a
row's last entry is computed completely.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

Logits = np.ndarray[Any, np.dtype[np.float32]]


class Runner(Protocol):
    """Computes one drafting network for several rows; results are logits over its own vocabulary.

    A row's i-th verified entry has position i, counting from 0. A tentative node has the position
    after its parent. Returned arrays may be overwritten by the next call.

    A runner with `reads_last = True` needs only the last of a row's entries. One with a number
    `reach` makes no more guesses than that in a line.
    """

    def start(self, num_rows: int, capacity: int) -> Any:
        """Make empty rows, each for at most `capacity` tokens, guesses included."""
        ...

    def extend(
        self,
        state: Any,
        rows: Sequence[int],  # (R,), distinct
        features: Sequence[Any],  # (R,) of (N_r, F), N_r >= 1: hidden states of verified tokens
        tokens: Sequence[Sequence[int]],  # (R,) of (N_r,): the token that follows each of them
    ) -> Logits:
        """Drop the rows' tentative nodes and append verified entries.

        Returns (R, Vd): the logits of the token after each row's last one.
        """
        ...

    def step(
        self,
        state: Any,
        rows: Sequence[int],  # (N,): the row of each node; may repeat
        parents: Sequence[int],  # (N,): a node of an earlier call, -1 for the row's last entry
        tokens: Sequence[int],  # (N,): the guess that each node stands for
    ) -> Logits:
        """Append tentative nodes. The nodes of a row are numbered from 0 in the order they are
        given.

        A node's feature is the network's own output at its parent. It attends to the verified
        entries, its ancestors and itself. Returns (N, Vd): the logits of the token after each node.
        """
        ...

    def release(self, state: Any, row: int) -> None:
        """Empty a row."""
        ...
