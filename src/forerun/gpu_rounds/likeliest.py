"""Computes the log-probabilities of a captured round beside its decision: of every token that may
be emitted, and of the likeliest tokens in its place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton

from forerun.engine.request import Report
from forerun.engine.results import TokenLogprob
from forerun.gpu_rounds.kernels.likeliest import log_totals

NUMBERS = (0, 1, 20)
"""The numbers of likeliest tokens that a round can be captured to find at each place."""
MOST_AT_ONCE, NUM_WARPS = 4096, 8
"""The most tokens of a row that its program reads at a time, and the program's warps."""


def number_of(wanted: Sequence[int | None]) -> int | None:
    """The smallest number of likeliest tokens that is enough for all requests; None if no request
    wants log-probabilities."""
    most = max((count for count in wanted if count is not None), default=None)
    return None if most is None else next(count for count in NUMBERS if count >= most)


class Likeliest:
    """A table of log-probabilities for the rows of a round. Each lane has, side by side: the
    normaliser of each row, the likeliest tokens of each row and their logits, and the logits of the
    draft's nodes and of the extra token."""

    def __init__(self, num_lanes: int, above: Sequence[int], count: int, device: Any) -> None:
        """above: (N,), the row of logits at which each node of a draft is judged."""
        self._count, self._num_rows = count, len(above) + 1
        width = self._num_rows * (2 + 2 * count)
        self.table = torch.zeros((num_lanes, width), device=device)  # ids are exact below 2^24
        self._totals = torch.zeros((num_lanes, self._num_rows), device=device)
        self._lanes = torch.arange(num_lanes, device=device)
        self._above = torch.tensor(above, dtype=torch.int64, device=device)

    def queue(self, logits: Any, drafts: Any, outcome: Any) -> None:
        """Launch the kernels that compute this table from logits (lanes, rows, V) and drafts
        (lanes, N)."""
        lanes, count, last = self._lanes, self._count, logits.shape[2] - 1
        nodes = logits[lanes[:, None], self._above[None], drafts.clamp(0, last)]
        extra = logits[lanes, outcome.reached.long(), outcome.extra.clamp(0, last)]
        block = min(MOST_AT_ONCE, triton.next_power_of_2(last + 1))
        log_totals[(self._totals.numel(),)](
            logits, self._totals, V=last + 1, BLOCK=block, num_warps=NUM_WARPS
        )
        parts = [self._totals, nodes, extra[:, None]]
        if count:
            best = torch.topk(logits, min(count, last + 1), -1) if count > 1 else None
            values, ids = best or torch.max(logits, -1, keepdim=True)
            parts += [values.flatten(1), ids.flatten(1).to(values.dtype)]
        begin = 0
        for part in parts:
            self.table[:, begin : begin + part.shape[1]].copy_(part)
            begin += part.shape[1]

    def reports(self, values: Any, path: Sequence[int]) -> list[Report]:
        """The log-probabilities of the tokens of a path, and of the extra token; values: a lane of
        the table, on the host."""
        rows = self._num_rows
        totals, nodes, best = values[:rows], values[rows : 2 * rows], values[2 * rows :]
        values, ids = best.reshape(2, rows, -1)

        def report(place: int, row: int) -> Report:
            def told(token: int, num_top: int) -> TokenLogprob:
                total = float(totals[row])
                top = zip(ids[row].tolist(), values[row].tolist(), strict=True)
                likely = [(int(one), logit - total) for one, logit in top if logit > -torch.inf]
                return TokenLogprob(token, float(nodes[place]) - total, tuple(likely[:num_top]))

            return told

        places = [*path, rows - 1]  # in `nodes`
        slots = [0, *(node + 1 for node in path)]
        return [report(*pair) for pair in zip(places, slots, strict=True)]
