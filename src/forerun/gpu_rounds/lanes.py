"""The requests of captured rounds on the device; each request has one place, its lane."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from forerun.engine.plan import Span
from forerun.gpu.shapes import MOST_OF_ROUND
from forerun.gpu_rounds.edits import Edits
from forerun.gpu_rounds.masks import Masks
from forerun.sampling.options import Sampling

MOST = 2**31 - 1
"""The largest 32-bit number; a larger top_k keeps everything, too."""


@dataclass(frozen=True)
class Lane:
    """The facts about one request that a captured round needs."""

    row: int
    previous: int  # the token before the last; anything if there is none
    last: int
    stored: int  # tokens before the last one, all of them stored
    output: int  # index in the output of the next token
    remaining: int  # tokens that may still be emitted
    seed: int
    temperature: float
    draft_temperature: float
    sampling: Sampling


def lane_of(span: Span, text: Sequence[int], draft_temperature: float | None) -> Lane:
    """Make the lane of a request with this text. draft_temperature: the drafter's; None uses the
    request's."""
    request = span.request
    output, temperature = len(text) - len(request.prompt), request.sampling.temperature
    return Lane(
        row=span.row, previous=text[-2] if len(text) > 1 else 0, last=text[-1],
        stored=len(text) - 1, output=output, remaining=request.limit - output, seed=request.seed,
        temperature=temperature,
        draft_temperature=temperature if draft_temperature is None else draft_temperature,
        sampling=request.sampling,
    )  # fmt: skip


class Lanes:
    """The inputs of all lanes of a round; a negative row number marks an unused lane."""

    def __init__(self, num_lanes: int, device: Any) -> None:
        def empty(count: int, dtype: Any) -> Any:
            return torch.zeros((count, num_lanes), dtype=dtype, device=device)

        self.edits: Edits | None = None  # made when a request with some comes
        self._masks: Masks | None = None  # and these
        self._tables = empty(7, torch.int32), empty(2, torch.int64), empty(4, torch.float32)
        narrow, (self.output, self.seeds), real = self._tables
        self.previous, self.last, self.rows, self.stored = narrow[:4]
        self.remaining, self.asked, self.top_k = narrow[4:]
        self.temperature, self.draft_temperature, self.top_p, self.min_p = real

    def put(self, lanes: Sequence[Lane], asked: Sequence[int]) -> None:
        """Set all lanes, and how far each drafts; the remaining lanes are unused."""
        for target, source in zip(self._tables, _tables(lanes, asked, len(self.rows)), strict=True):
            target.copy_(source, non_blocking=True)

    def join(self, places: Sequence[int], lanes: Sequence[Lane], asked: Sequence[int]) -> None:
        """Set the lanes at these places; all others continue."""
        where = torch.tensor(places).to(self.rows.device, non_blocking=True)
        for target, source in zip(self._tables, _tables(lanes, asked, len(lanes)), strict=True):
            target.index_copy_(1, where, source.to(target.device, non_blocking=True))

    def ask(self, lengths: Sequence[int]) -> None:
        """Set how far each lane drafts from now on."""
        asked = torch.tensor(lengths, dtype=torch.int32)
        self.asked[: len(lengths)].copy_(asked, non_blocking=True)

    def make_edits(self, vocab_size: int) -> Edits:
        if self.edits is None:
            self.edits = Edits(self.rows.shape[0], vocab_size, self.rows.device)
        return self.edits

    def make_masks(self, vocab_size: int) -> Masks:
        """Masks for the decisions of all rounds with these lanes."""
        if self._masks is None:
            self._masks = Masks(MOST_OF_ROUND, vocab_size, self.rows.device)
        return self._masks

    def leave(self, lanes: Sequence[int]) -> None:
        """Stop writing to the rows of these lanes, because their requests are over."""
        staying = torch.ones(self.rows.shape[0], dtype=torch.int32)
        staying[list(lanes)] = 0
        self.remaining.mul_(staying.to(self.remaining.device, non_blocking=True))


def _tables(lanes: Sequence[Lane], asked: Sequence[int], count: int) -> tuple[Any, Any, Any]:
    """The device tables of these lanes, followed by unused ones up to `count`."""
    narrow = np.zeros((7, count), np.int32)
    wide = np.zeros((2, count), np.uint64)
    real = np.ones((4, count), np.float32)
    narrow[2] = -1
    for index, (lane, length) in enumerate(zip(lanes, asked, strict=True)):
        options = lane.sampling
        narrow[:, index] = (
            lane.previous, lane.last, lane.row, lane.stored, lane.remaining, length,
            min(options.top_k or 0, MOST),
        )  # fmt: skip
        wide[:, index] = lane.output, lane.seed
        real[:, index] = lane.temperature, lane.draft_temperature, options.top_p, options.min_p
    tables = narrow, wide.view(np.int64), real
    first, second, third = map(torch.from_numpy, tables)
    return first, second, third


def cuts_law(sampling: Sampling) -> bool:
    """Whether top-k, top-p or min-p leave out tokens."""
    return bool(sampling.top_k or sampling.top_p < 1 or sampling.min_p > 0)
