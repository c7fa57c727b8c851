"""The rows of a drafting network on the device, which receive every pass of its target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from forerun.gpu.heads_storage import HeadsStorage
from forerun.gpu.kernels.heads import join_kept
from forerun.gpu.shapes import MOST_TOKENS, Inputs, PassShape

Entry = tuple[int, int, int]
"""The place of a token (its row and slot), and the token that follows it."""


class HeadsRows:
    """Rows of a drafting network, numbered like those of the target.

    lengths: the number of entries per row; they belong to the first tokens of a text, each with the
    token after it.
    """

    is_always_told = True

    def __init__(self, storage: HeadsStorage, num_rows: int) -> None:
        self.storage = storage
        self.lengths = [0] * num_rows

    def hear(self, inputs: Inputs, states: Any) -> None:
        """Compute and store the features of a target's pass, from its hidden states (M, F)."""
        self.storage.fuse(states, inputs.shape.num_tokens)
        self.storage.keep(inputs)

    def extend(self, entries: Sequence[Entry]) -> None:
        """Compute the keys and values of entries whose features are stored."""
        for begin in range(0, len(entries), MOST_TOKENS):
            part = entries[begin : begin + MOST_TOKENS]
            size = 1 << (len(part) - 1).bit_length()
            shape = PassShape(size, 0, 0, 1, 1)
            inputs = Inputs.empty(shape, self.storage.features.device)
            _fill(inputs, part)
            storage = self.storage
            join_kept[(size,)](
                inputs.ids, inputs.rows, inputs.slots, storage.weights.embedding, storage.norms,
                storage.joined, storage.weights.eps, num_warps=4, **storage.kept, **storage.wide,
            )  # fmt: skip
            storage.project(inputs, size)

    def release(self, row: int) -> None:
        self.lengths[row] = 0

    def move(self, sources: tuple[Any, Any], targets: tuple[Any, Any]) -> None:
        """Copy features between pages and slots, (M,) each, when the target moves a kept path of a
        tree."""
        features = self.storage.features
        features[targets] = features[sources]


def _fill(inputs: Inputs, entries: Sequence[Entry]) -> None:
    """Write entries into the inputs of a pass, in one copy."""
    table = np.zeros((5, inputs.shape.num_tokens), np.int32)
    table[1] = -1
    rows, slots, tokens = np.array(entries, np.int32).T
    table[:4, : len(entries)] = tokens, rows, slots, slots
    packed = np.zeros(inputs.packed.shape[0], np.int32)
    packed[: table.size] = table.reshape(-1)
    inputs.packed.copy_(torch.from_numpy(packed))
