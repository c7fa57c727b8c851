"""The `Heads` drafter in captured rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from forerun.base.errors import notice
from forerun.drafters.heads import Heads
from forerun.drafters.heads.torch_runner import TorchRunner
from forerun.engine.drafting import Drafting
from forerun.engine.plan import Span
from forerun.engine.steering.draft_planning import TREE_HEIGHT
from forerun.gpu.heads_rows import HeadsRows
from forerun.gpu.heads_storage import HeadsStorage
from forerun.gpu.pool import DeviceMemoryError
from forerun.gpu.rows import GpuRows
from forerun.gpu.shapes import NARROW
from forerun.gpu_rounds.captures import MARGIN, DraftRows
from forerun.gpu_rounds.device_drafter import DeviceDrafter
from forerun.gpu_rounds.tree_tables import PROFILE, level_order
from forerun.rules.base import Rule
from forerun.rules.match import Match
from forerun.rules.types import DraftLength
from forerun.trees.shapes import best_tree
from forerun.trees.tree import Tree


@dataclass
class DeviceHeads(DeviceDrafter):
    """A `Heads` drafter whose steps are part of captured rounds. Every round passes it the new
    tokens on the device, so it has to catch up only with prompts."""

    heads: HeadsRows = field(kw_only=True)
    hears: bool = field(default=True, init=False)

    @property
    def rows(self) -> HeadsRows | None:
        return None if self.drafting.drafter is None else self.heads

    def catch_up(
        self,
        spans: Sequence[Span],
        texts: Sequence[Sequence[int]],
        more: Sequence[int | None],
        ends: Sequence[int],
        length: int,
    ) -> DraftRows | None:
        """Compute the entries of all tokens but the last; their features are already stored."""
        rows = self.rows
        if rows is not None:
            entries = []
            for span, text, count in zip(spans, texts, more, strict=True):
                if count is None:
                    continue
                known = rows.lengths[span.row]
                entries += [(span.row, at, text[at + 1]) for at in range(known, len(text) - 1)]
                rows.lengths[span.row] = max(known, len(text) - 1)
            rows.extend(entries)
        return rows

    def note(self, row: int, before: int, num_accepted: int, length: int) -> None:
        if self.rows is not None:
            self.rows.lengths[row] = before + num_accepted

    def can_follow(self, length: int, num_stored: int) -> bool:
        """Whether the target stores all tokens but the last; the network needs their hidden
        states."""
        return num_stored >= length - 1 > 0


def tree_for(tree: int | Tree, draft_length: DraftLength, rule: Rule, num_rows: int) -> Tree | None:
    """The tree that captured rounds draft: the given one, or one with at most this many nodes.

    None under a rule other than `match`, or if the trees of all rows do not fit one pass or the
    room after a text.
    """
    height = TREE_HEIGHT if draft_length == "auto" else draft_length
    num_lanes = 1 << max(num_rows - 1, 0).bit_length()
    most = NARROW // num_lanes - 1
    if isinstance(tree, int):
        tree = best_tree(PROFILE, max(0, min(tree, most, MARGIN - height - 1)), height)
    fits = 0 < len(tree) <= most and len(tree) + tree.height < MARGIN
    return level_order(tree) if type(rule) is Match and fits else None


def device_heads(drafter: Heads, drafting: Drafting, state: GpuRows) -> DeviceHeads | None:
    """The drafter on the rows of its target; None where there is no memory for it, and for a
    published head with switches that captured rounds do not compute.

    Its storage stays with the target's, so that a later engine finds its captured rounds again."""
    listening, target = getattr(drafting.state, "inner", drafting.state), state.storage
    runner = listening.runner
    assert isinstance(runner, TorchRunner)
    if not runner.network.design.is_usual:
        notice(
            f"{drafter.name} has norms or layers that captured rounds lack: it drafts beside them"
        )
        return None
    kept = target.heads
    if kept is None or kept.network is not runner.network:
        pages = target.pages
        try:
            with torch.inference_mode():
                kept = HeadsStorage(runner.network, runner.embedding, drafter.tokens, pages, runner)
        except (DeviceMemoryError, torch.cuda.OutOfMemoryError):  # of its pages, or its scratch
            return None
        target.heads = kept
    rows = HeadsRows(kept, len(state.lengths))
    state.tell(rows)
    return DeviceHeads(drafting, heads=rows)
