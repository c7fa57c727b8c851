"""The draft steps of captured rounds, by a model or by a network on the target's hidden states.

A step computes the logits of the next guess; the guess is sampled between two steps.
"""

from __future__ import annotations

from typing import Any

import torch

from forerun.gpu.forward import launch
from forerun.gpu.heads_storage import HeadsStorage
from forerun.gpu.kernels.heads import draft_entry, join_followers
from forerun.gpu.kernels.lanes import first_draft_inputs, next_draft_inputs
from forerun.gpu.shapes import Inputs, PassShape
from forerun.gpu.storage import Storage
from forerun.gpu_rounds.lanes import Lanes
from forerun.kernels.early_launch import dependent_launch
from forerun.kernels.scratch import Outcome


class Pass:
    """A pass of a model within a round, with its own logits."""

    def __init__(
        self,
        storage: Storage,
        shape: PassShape,
        logits: Any,
        watched: Any = None,
        layers: tuple[int, ...] = (),
    ) -> None:
        self.inputs = Inputs.empty(shape, storage.weights.head.device)
        self._storage, self._shape = storage, shape
        self._attention = storage.attention(shape)
        self._logits = logits
        self._watched, self._layers = watched, layers

    def queue(self, logits: Any = None) -> None:
        """Launch the pass. logits: where to write the logits; None: to its own memory."""
        storage = self._storage
        launch(storage.weights, self._shape, self.inputs, storage.cache, storage.scratch,
               self._attention, self._logits if logits is None else logits,
               watched=self._watched, layers=self._layers)  # fmt: skip


class ModelSteps:
    """The draft steps of a model, for `num_lanes` lanes."""

    def __init__(
        self, draft: Storage, num_lanes: int, num_chunks: int, sizes: dict[str, int]
    ) -> None:
        b, logits = num_lanes, draft.logits("step", num_lanes)
        self._first = Pass(draft, PassShape(2 * b, b, b, 2, num_chunks), logits)
        self._later = Pass(draft, PassShape(b, b, b, 1, num_chunks), logits)
        self._vocab, self._sizes = logits.shape[1], sizes

    def queue(self, step: int, lanes: Lanes, sampled: Outcome, drafts: Any, logits: Any) -> None:
        """Launch a step, which computes logits (lanes, V). A later step first takes the token that
        was sampled last, and records it in drafts (lanes, K)."""
        this = self._first if step == 0 else self._later
        inputs = this.inputs
        where = (inputs.ids, inputs.rows, inputs.slots, inputs.positions, inputs.segments,
                 inputs.picked)  # fmt: skip
        if step == 0:
            first_draft_inputs[(1,)](
                lanes.previous, lanes.last, lanes.rows, lanes.stored, lanes.remaining, *where,
                **self._sizes,
            )  # fmt: skip
        else:
            next_draft_inputs[(1,)](
                sampled.extra, drafts, lanes.rows, lanes.stored, lanes.remaining, *where, step,
                drafts.shape[1], V=self._vocab, **self._sizes,
            )  # fmt: skip
        this.queue(logits)


class HeadsSteps:
    """The draft steps of a network on the target's hidden states, for a number of lanes."""

    def __init__(self, draft: HeadsStorage, num_lanes: int, num_chunks: int) -> None:
        shape, device = (
            PassShape(num_lanes, num_lanes, num_lanes, 1, num_chunks),
            draft.norms.device,
        )
        self._draft = draft
        self._inputs = Inputs.empty(shape, device)
        self._inputs.picked.copy_(torch.arange(num_lanes))
        self._attention = draft.attention(shape)

    def queue(self, step: int, lanes: Lanes, sampled: Outcome, drafts: Any, logits: Any) -> None:
        """Launch a step, which computes logits (lanes, V). A later step first takes the token that
        was sampled last, and records it in drafts (lanes, K)."""
        draft, inputs = self._draft, self._inputs
        draft_entry[(len(logits),)](
            lanes.last, sampled.extra, drafts, lanes.rows, lanes.stored, lanes.remaining,
            draft.weights.embedding, draft.norms, draft.scratch.x, draft.joined, inputs.rows,
            inputs.slots, inputs.positions, inputs.segments, step, drafts.shape[1],
            draft.weights.eps, V=draft.vocab_size, FIRST=step == 0, num_warps=4, **draft.kept,
            **draft.wide, **dependent_launch(drafts.device),
        )  # fmt: skip
        draft.finish(inputs, self._attention, logits)


class Hearing:
    """After a round's decision, updates the drafting network: computes its entries for the tokens
    that the round emitted, and stores the features of the prompt tokens that it read.

    inputs, watched: the inputs of the target's pass, and its hidden states (M, F).
    num_tokens: of the lanes, which come first in the pass.
    """

    def __init__(self, draft: HeadsStorage, inputs: Inputs, watched: Any, num_tokens: int) -> None:
        self._draft, self._inputs, self._watched = draft, inputs, watched
        self._num_tokens = num_tokens

    def queue(self, outcome: Outcome, drafts: Any) -> None:
        draft, inputs = self._draft, self._inputs
        num_tokens = self._num_tokens
        draft.fuse(self._watched, inputs.shape.num_tokens)
        join_followers[(num_tokens,)](
            draft.fused, outcome.accepted, outcome.extra, drafts, inputs.rows, inputs.slots,
            draft.weights.embedding, draft.norms, draft.joined, drafts.shape[1], draft.weights.eps,
            V=draft.vocab_size, num_warps=4, **draft.kept, **draft.wide,
            **dependent_launch(drafts.device),
        )  # fmt: skip
        if inputs.shape.num_tokens > num_tokens:
            draft.keep(inputs, num_tokens)
        draft.project(inputs, num_tokens)
