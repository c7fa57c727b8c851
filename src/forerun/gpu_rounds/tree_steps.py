"""Fills a tree of a given shape with guesses of a drafting network, within a captured round: one
pass per level, for all lanes at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton

from forerun.gpu.heads_storage import HeadsStorage
from forerun.gpu.shapes import Inputs, PassShape
from forerun.gpu_rounds.draft_steps import HeadsSteps
from forerun.gpu_rounds.kernels.tree_rounds import join_path, level_entry, race_children
from forerun.gpu_rounds.lanes import Lanes
from forerun.gpu_rounds.tree_tables import Level, TreeTables
from forerun.kernels.decide import OPTIONS
from forerun.kernels.scratch import Outcome, padded

PER_WARP = 512
"""The tokens of a race that each warp handles, unless that would take too many warps."""


class TreeSteps:
    """Drafts trees of one shape, for a fixed number of lanes."""

    def __init__(
        self, draft: HeadsStorage, tables: TreeTables, num_lanes: int, num_chunks: int
    ) -> None:
        self._draft, self._num_lanes = draft, num_lanes
        self._root = HeadsSteps(draft, num_lanes, num_chunks)
        self._unsampled = Outcome.allocate(num_lanes, draft.columns.device)
        height = tables.tree.height
        self._levels = [
            _Level(draft, level, depth, height, num_lanes, num_chunks)
            for depth, level in enumerate(tables.levels)
        ]

    def queue(self, lanes: Lanes, drafts: Any) -> None:
        """Launch the passes of all levels, which fill in drafts (lanes, N)."""
        draft, before = self._draft, 1
        for depth, level in enumerate(self._levels):
            logits = draft.narrow_logits(self._num_lanes * level.width)
            if depth == 0:
                self._root.queue(0, lanes, self._unsampled, drafts, logits)
            else:
                level.enter(lanes, drafts, before)
                draft.finish(level.inputs, level.attention, logits, draft.fused)
            level.race(lanes, drafts, logits)
            before = level.width


class _Level:
    """The drafting network's entries at one depth of the tree, in every lane."""

    def __init__(
        self,
        draft: HeadsStorage,
        level: Level,
        depth: int,
        height: int,
        num_lanes: int,
        num_chunks: int,
    ) -> None:
        self._draft, self._depth = draft, depth
        self.width, self._most = len(level.nodes), max(level.counts)
        device, count = draft.columns.device, num_lanes * len(level.nodes)
        self._nodes, self._above, self._firsts, self._counts = (
            table_of(part, device)
            for part in (level.nodes, level.above, level.firsts, level.counts)
        )
        self._serials = table_of([[*row, *[0] * (height - len(row))] for row in level.serials],
                                 device)  # fmt: skip
        shape = PassShape(count, count, count, 1, num_chunks, branch_width=height)
        self.inputs = Inputs.empty(shape, device)
        self.inputs.picked.copy_(torch.arange(count))
        self.attention = draft.attention(shape)

    def enter(self, lanes: Lanes, drafts: Any, num_before: int) -> None:
        """Launch the kernel that writes the entries; their features go to `fused`."""
        draft, inputs = self._draft, self.inputs
        width = inputs.shape.branch_width
        level_entry[(inputs.shape.num_tokens,)](
            drafts, lanes.rows, lanes.stored, lanes.remaining, self._nodes, self._above,
            self._serials, draft.scratch.x, draft.weights.embedding, draft.norms, draft.fused,
            draft.joined, inputs.rows, inputs.slots, inputs.positions, inputs.before,
            inputs.branches, inputs.segments, drafts.shape[1], self.width, num_before,
            self._depth - 1, width, draft.weights.eps, V=draft.vocab_size, WIDE=padded(width),
            num_warps=4, **draft.wide,
        )  # fmt: skip

    def race(self, lanes: Lanes, drafts: Any, logits: Any) -> None:
        """Launch the kernel that chooses the entries' children from logits (M, Vd)."""
        count, num_tokens = logits.shape
        wide = int(triton.next_power_of_2(num_tokens))
        race_children[(count,)](
            logits, self._draft.columns, lanes.draft_temperature, lanes.seeds, lanes.output,
            self._firsts, self._counts, drafts, drafts.shape[1], self.width, self._depth,
            MOST=self._most, VD=num_tokens, VP=wide, num_warps=min(32, max(4, wide // PER_WARP)),
            **OPTIONS,
        )  # fmt: skip


class PathHearing:
    """After a round's decision, computes the network's entries for the accepted path.

    watched: hidden states (lanes * (N + 1), F) of the target's pass.
    """

    def __init__(self, draft: HeadsStorage, watched: Any, num_lanes: int, height: int) -> None:
        count = num_lanes * (height + 1)
        shape = PassShape(count, 0, 0, 1, 1)
        self._inputs = Inputs.empty(shape, draft.columns.device)
        self._draft, self._watched = draft, watched

    def queue(self, outcome: Outcome, nodes: Any, line: Any, lanes: Lanes) -> None:
        """nodes, line: (lanes, height), the accepted nodes and their tokens."""
        draft, inputs = self._draft, self._inputs
        num_rows, num_lanes = len(self._watched), len(nodes)
        draft.fuse(self._watched, num_rows)
        join_path[(inputs.shape.num_tokens,)](
            draft.fused, outcome.accepted, outcome.extra, nodes, line, lanes.rows, lanes.stored,
            lanes.remaining, draft.weights.embedding, draft.norms, draft.joined, inputs.rows,
            inputs.slots, inputs.positions, num_rows // num_lanes - 1, nodes.shape[1],
            draft.weights.eps, V=draft.vocab_size, num_warps=4, **draft.kept, **draft.wide,
        )  # fmt: skip
        draft.project(inputs, inputs.shape.num_tokens)


def table_of(values: Sequence[Any], device: Any) -> Any:
    """Whole numbers as a device tensor for kernels."""
    return torch.tensor(values, dtype=torch.int32, device=device)
