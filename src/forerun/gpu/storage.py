"""Keys and values on the device, with the captured passes that read and write them.

A captured graph holds addresses, so storage is made once for as many rows and tokens as are hinted
at, kept for the next engine, and replaced by a larger one only when a text outgrows it.
"""

from __future__ import annotations

from typing import Any

import torch

from forerun.base.capturing import captured
from forerun.base.errors import ForerunError, explain
from forerun.gpu.forward import (
    CHUNK,
    MOST_TOKENS,
    AttentionScratch,
    Cache,
    Inputs,
    PassShape,
    Scratch,
    launch,
)
from forerun.gpu.weights import Weights

FIRST_CAPACITY = 1024  # tokens of a row where nothing is hinted at
FEW_ROWS = 4  # that are made at once, however many may come
SHARE = 0.5  # of the free memory, within which all rows are made at once


class DeviceMemoryError(ForerunError, MemoryError):
    """The device has no room for the keys and values that were asked for."""


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
        """The pass over what stands in `inputs`; logits (num_logits, V), until the next pass."""
        self._num_runs += 1
        if self._num_runs == 2 and self.inputs.packed.is_cuda:  # the first has compiled the kernels
            self._graph, _ = captured(self.queue, self.inputs.packed.device)
        if self._graph is None:
            self.queue()
        else:
            self._graph.replay()
        return self._logits


class Storage:
    """Rows of one model on its device."""

    def __init__(self, weights: Weights, rotary: Any, num_rows: int, capacity: int) -> None:
        self.weights = weights
        self.num_bytes = weights.num_bytes  # read in a pass
        self.scratch = Scratch(weights, MOST_TOKENS)
        self._logits: dict[tuple[str, int], Any] = {}
        self._attention: AttentionScratch | None = None
        self.layers: tuple[int, ...] = ()
        self.watched: Any = None
        self._rotary = rotary
        self._passes: dict[tuple[PassShape, tuple[int, ...]], CapturedPass] = {}  # layers too
        self._states: dict[tuple[int, ...], Any] = {(): None}  # room for those of some layers
        self.rounds: dict[Any, Any] = {}  # captured, by shape
        self.lanes: dict[Any, Any] = {}  # of these rounds
        self.heads: Any = None  # storage of a network that drafts from the states of these rows
        self.cache = self._allocate(num_rows, rounded_up(capacity))

    @property
    def num_rows(self) -> int:
        return int(self.cache.keys.shape[1])

    @property
    def capacity(self) -> int:
        """Tokens of a row."""
        return int(self.cache.keys.shape[3])

    def logits(self, use: str, count: int) -> Any:
        """Room for so many rows of logits (count, V), shared by all passes with that use: they run
        one after the other."""
        key = use, 1 << max(count - 1, 0).bit_length()
        if key not in self._logits:
            size = key[1], self.weights.head.shape[0]
            device = self.weights.head.device
            self._logits[key] = torch.empty(size, dtype=torch.float32, device=device)
        return self._logits[key][:count]

    def attention(self, shape: PassShape) -> AttentionScratch:
        """Scratch for the attention of a pass, which all passes share; where one needs more, those
        captured before keep the smaller one that they were captured with."""
        if self._attention is None or not self._attention.has_room(self.weights, shape):
            self._attention = AttentionScratch(self.weights, shape)
        return self._attention

    def captured(self, shape: PassShape) -> CapturedPass:
        key = shape, self.layers
        if key not in self._passes:
            self._passes[key] = CapturedPass(self, shape)
        return self._passes[key]

    def watch(self, layers: tuple[int, ...]) -> None:
        """Keep hidden states of the layers; passes captured for others do not."""
        if layers not in self._states:
            width = len(layers) * self.weights.hidden
            self._states[layers] = self.scratch.x.new_empty((MOST_TOKENS, width))
        self.layers, self.watched = layers, self._states[layers]

    def close(self) -> None:
        """Forget what was captured; its memory is free at once, without waiting for the garbage
        collector to find the cycle."""
        self._passes, self.rounds, self.lanes = {}, {}, {}
        self.heads = self._attention = None

    def grow(self, num_rows: int, capacity: int) -> None:
        """Make room, and copy what there is."""
        old = self.cache
        self._passes, self.rounds, self._attention = {}, {}, None
        self.cache = self._allocate(
            max(num_rows, self.num_rows), rounded_up(max(capacity, self.capacity))
        )
        rows, slots = old.keys.shape[1], old.keys.shape[3]
        self.cache.keys[:, :rows, :, :slots] = old.keys
        self.cache.values[:, :rows, :, :slots] = old.values

    def _allocate(self, num_rows: int, capacity: int) -> Cache:
        weights = self.weights
        form = weights.form
        size = len(weights.layers), num_rows, form.num_key_heads, capacity, form.head_size
        try:
            keys, values = (
                torch.zeros(size, dtype=weights.head.dtype, device=weights.head.device)
                for _ in range(2)
            )
        except torch.cuda.OutOfMemoryError as error:
            what = f"Keys and values of {num_rows} rows of {capacity} tokens"
            needed = 2 * keys_bytes(weights) * num_rows * capacity
            raise no_memory(what, needed, weights.head.device) from error
        cos, sin = self._rotary(capacity)
        return Cache(keys, values, cos, sin)


def no_memory(what: str, needed: int, device: Any) -> DeviceMemoryError:
    """What to say where so many bytes cannot be had."""
    free = torch.cuda.mem_get_info(device)[0]
    return DeviceMemoryError(
        explain(
            f"{what} need {needed / 2**30:.1f} GiB on the device.",
            f"{free / 2**30:.1f} GiB free",
            "Lower batch_size, max_new_tokens or the length of the prompts, or free memory on the "
            "device.",
        )
    )


def keys_bytes(weights: Weights) -> int:
    """Of the keys of one token in all layers."""
    size = len(weights.layers) * weights.form.num_key_heads * weights.form.head_size
    return size * int(weights.head.element_size())


def rounded_up(capacity: int) -> int:
    """Whole chunks of attention, so that similar calls share storage."""
    return max(1, -(-capacity // CHUNK)) * CHUNK


def first_rows(weights: Weights, num_rows: int, capacity: int) -> int:
    """How many rows to make at once: all, unless they would take much of the free memory."""
    if not weights.head.is_cuda:
        return num_rows
    free = torch.cuda.mem_get_info(weights.head.device)[0]
    needed = 2 * keys_bytes(weights) * num_rows * rounded_up(capacity)
    return num_rows if needed <= SHARE * free else min(num_rows, FEW_ROWS)
