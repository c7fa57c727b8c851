"""Scores the likeliest tokens of each place of a block again, given the token before (DFlash2).

The network's own distributions do not know of one another. A selector adds to the logit of each
candidate a product of three vectors: one of the token before, one of the candidate, and one that
the network makes of the entry. So the tables of all places can be walked, without another pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forerun.base.arrays import HostArray
from forerun.drafters.heads.runner import Logits
from forerun.drafters.likeliest import likeliest


@dataclass(frozen=True)
class Selector:
    """The tables of a selector; the product that reads entries is part of the network."""

    before: NDArray[np.float32]  # (V, rank), by the token before
    after: NDArray[np.float32]  # (V, rank), by the candidate
    width: int  # K: candidates of each place
    multiplier: float = 1.0  # of the network's logits
    cap: float | None = None  # cap * tanh(logit / cap) takes the place of a logit

    def candidates(
        self, outputs: Logits, rows: Sequence[int], previous: Sequence[int]
    ) -> tuple[HostArray, Logits]:
        """The candidates (N, K) after tokens `previous` (N,), and their scores (N, K).

        outputs: the network's at one place of the block, (R, V + rank). rows: (N,), each token's
        row of them.
        """
        logits, entries = np.split(outputs, [len(self.after)], axis=1)
        columns = likeliest(logits, self.width)  # (R, K)
        own = np.take_along_axis(logits, columns, axis=1) * np.float32(self.multiplier)
        if self.cap is not None:
            own = self.cap * np.tanh(own / self.cap)
        tokens = columns[rows]
        pairs = self.before[previous] * entries[rows]  # (N, rank)
        scores: Logits = own[rows] + np.einsum("nr,nkr->nk", pairs, self.after[tokens])
        return tokens, scores
