"""The device memory of an engine: pages of its rows, scratch, and captured passes.

A captured graph contains addresses, so all of this is kept for the model's next engine.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import cached_property
from typing import Any
from weakref import ref

import torch

from forerun.base.capturing import captured
from forerun.gpu.attention import AttentionScratch, Cache
from forerun.gpu.forward import Scratch, launch
from forerun.gpu.pool import DevicePages
from forerun.gpu.shapes import MOST_TOKENS, Inputs, PassShape
from forerun.gpu.weights import Weights

MOST_CAPTURED = 256
"""The largest number of captured passes, and of captured rounds, that are kept; the least recently
used ones are dropped."""


class Recent(OrderedDict[Any, Any]):
    """A cache of the most recently used values."""

    def recall(self, key: Any) -> Any:
        """The value of a key, or None; it then counts as used."""
        if key in self:
            self.move_to_end(key)
        return self.get(key)

    def keep(self, key: Any, value: Any) -> None:
        """Keep a value; if there are too many, the least recently used one is dropped."""
        self[key] = value
        self.move_to_end(key)
        if len(self) > MOST_CAPTURED:
            self.popitem(last=False)


class CapturedPass:
    """One shape of pass: its inputs at fixed addresses, and its graph once it has run twice."""

    def __init__(self, storage: Storage, shape: PassShape) -> None:
        device = storage.weights.head.device
        self.shape = shape
        self.inputs = Inputs.empty(shape, device)
        self._storage = storage
        self._attention = storage.attention(shape)
        self._logits = storage.logits("pass", shape.num_logits)
        self._graph: Any = None
        self._num_runs = 0

    def queue(self) -> None:
        storage = self._storage
        launch(
            storage.weights, self.shape, self.inputs, storage.cache, storage.scratch,
            self._attention, self._logits, watched=storage.watched, layers=storage.layers,
        )  # fmt: skip

    def run(self) -> Any:
        """Run the pass on `inputs`; returns logits (num_logits, V), which the next pass
        overwrites."""
        self._num_runs += 1
        if self._num_runs == 2 and self.inputs.packed.is_cuda:  # the first has compiled the kernels
            self._graph, _ = captured(self.queue, self.inputs.packed.device)
        if self._graph is None:
            self.queue()
        else:
            self._graph.replay()
        return self._logits


class Storage:
    """The device memory of the rows of one engine at a time."""

    def __init__(self, weights: Weights, pages: DevicePages, owner: Any) -> None:
        """owner: when this object is gone, nobody can use the storage any more."""
        self.weights, self.pages, self._owner = weights, pages, ref(owner)
        self.num_bytes = weights.num_bytes  # read in a pass
        # Made before the pool, which is given what they leave.
        self.scratch = Scratch(weights, MOST_TOKENS)
        self._attention = AttentionScratch.shared(weights, pages.pool.longest)
        self._logits: dict[tuple[str, int], Any] = {}
        self.layers: tuple[int, ...] = ()
        self.watched: Any = None
        self._passes = Recent()  # by shape and layers
        self._states: dict[tuple[int, ...], Any] = {(): None}  # room for those of some layers
        self.rounds = Recent()  # captured, by shape
        self.warm: dict[Any, Any] = {}  # which of them were captured beforehand
        self.lanes: dict[Any, Any] = {}  # of these rounds
        self.heads: Any = None  # storage of a network that drafts from the states of these rows

    @cached_property
    def cache(self) -> Cache:
        keys, values, cos, sin = self.pages.pool.tensors
        return Cache(keys, values, self.pages.table, cos, sin)

    def logits(self, use: str, count: int) -> Any:
        """Memory for this many rows of logits (count, V), shared by all passes with this use, which
        run one after the other."""
        key = use, 1 << max(count - 1, 0).bit_length()
        if key not in self._logits:
            size = key[1], self.weights.head.shape[0]
            device = self.weights.head.device
            self._logits[key] = torch.empty(size, dtype=torch.float32, device=device)
        return self._logits[key][:count]

    def attention(self, shape: PassShape) -> AttentionScratch | None:
        """Scratch memory that the attention of all passes shares. None if this pass would need
        more: then one program goes through all chunks of a segment."""
        return self._attention if self._attention.has_room(self.weights, shape) else None

    def captured(self, shape: PassShape) -> CapturedPass:
        key = shape, self.layers
        made: CapturedPass | None = self._passes.recall(key)
        if made is None:
            made = CapturedPass(self, shape)
            self._passes.keep(key, made)
        return made

    @property
    def is_used(self) -> bool:
        return self._owner() is not None

    def forget_drafters(self) -> None:
        """Let captured rounds drop the keys of drafters that no longer exist."""
        if self.heads is not None and not self.heads.is_used:
            self.heads = None
        for shape, made in [*self.rounds.items()]:
            if made.draft is not None and not made.draft.is_used:
                del self.rounds[shape]

    def watch(self, layers: tuple[int, ...]) -> None:
        """Keep the hidden states of these layers. Passes captured for other layers are not used
        meanwhile."""
        if layers not in self._states:
            width = len(layers) * self.weights.hidden
            self._states[layers] = self.scratch.x.new_empty((MOST_TOKENS, width))
        self.layers, self.watched = layers, self._states[layers]
