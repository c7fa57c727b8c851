"""A captured round whose draft is a tree of a given shape, under `match`.

The tree is drafted, scored in one pass, and compared with the target's own tokens; the keys and
values of the accepted path are moved to the end of the text.
"""

from __future__ import annotations

import torch
import triton

from forerun.gpu.heads_storage import HeadsStorage
from forerun.gpu.shapes import PassShape
from forerun.gpu.storage import Storage
from forerun.gpu_rounds.edits import Edits
from forerun.gpu_rounds.kernels.tree_rounds import move_path, path_tokens, trace_path, tree_inputs
from forerun.gpu_rounds.lanes import Lanes
from forerun.gpu_rounds.rounds import CapturedRound, RoundShape
from forerun.gpu_rounds.tree_steps import PathHearing, TreeSteps, table_of
from forerun.gpu_rounds.tree_tables import TreeTables
from forerun.kernels.scratch import padded


class TreeRound(CapturedRound):
    """A captured round of one shape, with a tree as its draft."""

    def __init__(
        self, shape: RoundShape, lanes: Lanes, target: Storage, draft: HeadsStorage
    ) -> None:
        assert shape.tree is not None
        tables = TreeTables(shape.tree)
        self._height, self._num_nodes = shape.tree.height, len(shape.tree)
        super().__init__(shape, lanes, target, draft)
        device, b = self.drafts.device, shape.num_lanes
        self._depths, self._paths = (table_of(t, device) for t in (tables.depths, tables.paths))
        parents = table_of(shape.tree.parents, device)
        self._parents = parents.expand(b, self._num_nodes).contiguous()
        self._nodes = torch.zeros((b, self._height), dtype=torch.int32, device=device)
        self._line = torch.zeros((b, self._height), dtype=torch.int64, device=device)
        self._tree_steps = TreeSteps(draft, tables, b, shape.num_chunks)
        self._path_hearing = PathHearing(draft, self._watched, b, self._height)
        self._pass.inputs.picked.copy_(torch.arange(b * (self._num_nodes + 1)))
        self._drafted = None  # (lanes * (N + 1), height): the tokens on the path to each row
        if shape.edits:
            size = b * (self._num_nodes + 1), self._height
            self._drafted = torch.zeros(size, dtype=torch.int64, device=device)
            self._all_depths = self._depths.repeat(b)
        self._tree_sizes = {"LINE": padded(self._num_nodes + 1), "WIDE": padded(self._height)}

    def _pass_shape(self) -> PassShape:
        """The shape of the pass, in which every node is a segment of its own that reads its own
        branch."""
        count, chunks = self.shape.num_lanes * (self._num_nodes + 1), self.shape.num_chunks
        return PassShape(count, count, count, 1, chunks, branch_width=self._height)

    def _prepare_drafting(self, draft: Storage) -> None:
        """Does nothing, because `TreeSteps` drafts level by level and needs no preparation."""

    def _queue_inputs(self) -> None:
        lanes, inputs = self.lanes, self._pass.inputs
        self._tree_steps.queue(lanes, self.drafts)
        tree_inputs[(self.shape.num_lanes,)](
            lanes.last, self.drafts, lanes.asked, lanes.rows, lanes.stored, lanes.remaining,
            self._lengths, self._depths, self._paths, inputs.ids, inputs.rows, inputs.slots,
            inputs.positions, inputs.before, inputs.branches, inputs.segments, self._num_nodes,
            self._height, V=self._logits.shape[1], num_warps=1, **self._tree_sizes,
        )  # fmt: skip

    def _queue_edits(self, edits: Edits) -> None:
        path_tokens[(self.shape.num_lanes,)](
            self.drafts, self._paths, self._depths, self._drafted, self._num_nodes, self._height,
            num_warps=1, **self._tree_sizes,
        )  # fmt: skip
        edits.apply(
            self._logits, self._drafted, self.lanes.output, num_rows=self._num_nodes + 1,
            depths=self._all_depths,
        )  # fmt: skip

    def _queue_end(self) -> None:
        lanes, out, b = self.lanes, self._outcome, self.shape.num_lanes
        trace_path[(b,)](
            out.reached, out.accepted, self.drafts, self._parents, self._nodes, self._line,
            self._num_nodes, self._height, num_warps=1,
        )  # fmt: skip
        cache = self._target.cache
        num_layers, num_pages, num_heads, page, size = cache.keys.shape
        move_path[(b, num_layers * num_heads)](
            cache.keys, cache.values, self._nodes, out.accepted, lanes.rows, lanes.stored,
            lanes.remaining, cache.pages, num_pages, cache.pages.shape[1], self._height, PAGE=page,
            KV=num_heads, HD=size, HP=triton.next_power_of_2(size),
            WIDE=self._tree_sizes["WIDE"], num_warps=1,
        )  # fmt: skip
        if self._edits is not None:
            self._edits.note(out, self._line, lanes)
        self._path_hearing.queue(out, self._nodes, self._line, lanes)
        self._advance()
