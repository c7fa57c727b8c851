"""Runs a block network with torch, on the device and in the precision of its weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from forerun.drafters.block.network import BlockNetwork
from forerun.drafters.heads.runner import Logits


class BlockRows:
    """Keys and values (layers, rows, slots, KV, d) of the tokens that the target has processed."""

    def __init__(self, num_rows: int) -> None:
        self.lengths = [0] * num_rows
        self.keys: Any = None
        self.values: Any = None


class TorchBlockRunner:
    """The plain implementation for any device; faster runners are tested against it."""

    def __init__(self, network: BlockNetwork, embedding: Tensor) -> None:
        self.network = network.eval().requires_grad_(False)
        self.embedding = embedding  # (V, D), the target's

    def start(self, num_rows: int, capacity: int) -> BlockRows:
        return BlockRows(num_rows)

    def extend(
        self,
        state: BlockRows,
        rows: Sequence[int],
        features: Sequence[Any],
        tokens: Sequence[Sequence[int]],
    ) -> Logits:
        """Append tokens that the target has processed, and guess what follows: logits (R, N, Vd).

        The last token of each row, which the target has not processed yet, is the block's anchor.
        """
        like = self.network.head.weight
        network, device = self.network, like.device
        counts = [len(fed) for fed in tokens]
        starts = [state.lengths[row] for row in rows]
        owners = torch.tensor(rows).repeat_interleave(torch.tensor(counts))
        pairs = zip(starts, counts, strict=True)
        slots = torch.cat([torch.arange(at, at + count) for at, count in pairs]).to(device)
        with torch.inference_mode():
            hidden = torch.cat([torch.as_tensor(part).to(like) for part in features])
            fused, angles = network.features(hidden), network.angles(slots)
            for number, layer in enumerate(network.layers):
                self._keep(state, number, (owners.to(device), slots), layer, fused, angles)
            for row, count in zip(rows, counts, strict=True):
                state.lengths[row] += count
            anchors = torch.tensor([fed[-1] for fed in tokens], device=self.embedding.device)
            outputs = self._block(state, rows, anchors)
            logits: Logits = network.logits(network.outputs(outputs)).float().cpu().numpy()
        return logits

    def release(self, state: BlockRows, row: int) -> None:
        state.lengths[row] = 0

    def _block(self, state: BlockRows, rows: Sequence[int], anchors: Tensor) -> Tensor:
        """The last layer's outputs (R, S, D) for blocks that follow the texts of these rows."""
        network, device = self.network, self.network.head.weight.device
        lengths = torch.tensor([state.lengths[row] for row in rows], device=device)
        size, longest = network.design.block_size, int(lengths.max())
        offsets = torch.arange(size, device=device)
        angles = network.angles(lengths[:, None] + offsets)
        is_seen = torch.arange(longest, device=device) < lengths[:, None]  # (R, T)
        mask = torch.cat((is_seen, is_seen.new_ones(len(rows), size)), 1)[:, None, None]
        entries = network.entries(self.embedding, anchors).to(network.head.weight)
        for number, layer in enumerate(network.layers):
            query, key, value = layer.project(entries, *angles)
            keys, values = (
                torch.cat((kept[number][rows, :longest], own), 1).transpose(1, 2)
                for kept, own in ((state.keys, key), (state.values, value))
            )
            group = query.shape[2] // keys.shape[1]
            attended = torch.nn.functional.scaled_dot_product_attention(
                query.transpose(1, 2),
                keys.repeat_interleave(group, 1),
                values.repeat_interleave(group, 1),
                attn_mask=mask,
            )
            entries = layer.add(entries, attended.transpose(1, 2).flatten(2))
        return entries

    def _keep(
        self, state: BlockRows, number: int, where: Any, layer: Any, fused: Tensor, angles: Any
    ) -> None:
        """Store one layer's keys and values of features (N, D) in their rows and slots."""
        keys, values = layer.keys_values(fused, *angles)
        self._make_room(state, int(where[1].max()) + 1, keys)
        state.keys[number][where], state.values[number][where] = keys, values

    def _make_room(self, state: BlockRows, slots: int, like: Tensor) -> None:
        """Grow the storage if needed, at least twofold, so that copying costs O(1) per token on
        average."""
        have = 0 if state.keys is None else state.keys.shape[2]
        if slots <= have:
            return
        shape = len(self.network.layers), len(state.lengths), max(slots, 2 * have, 64)
        for name in ("keys", "values"):
            larger = like.new_zeros((*shape, *like.shape[1:]))
            if have:
                larger[:, :, :have] = getattr(state, name)
            setattr(state, name, larger)
