"""A drafting network computed with torch, on the device and in the precision of its weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from forerun.drafters.heads.network import Network
from forerun.drafters.heads.runner import Logits


class TorchRows:
    """Keys and values (rows, slots, KV, d): verified entries, then nodes in their order."""

    def __init__(self, num_rows: int) -> None:
        self.lengths = [0] * num_rows  # verified entries
        self.keys: Any = None
        self.values: Any = None
        self.last: dict[int, Tensor] = {}  # (D,): the output at each row's last entry
        self.nodes: list[list[Tensor]] = [[] for _ in range(num_rows)]  # (D,): output per node
        self.paths: list[list[list[int]]] = [[] for _ in range(num_rows)]  # ancestors and itself


class TorchRunner:
    """The plain implementation for any device; faster runners are tested against it."""

    def __init__(self, network: Network, embedding: Tensor) -> None:
        self.network = network.eval().requires_grad_(False)
        self.embedding = embedding  # (V, D), the target's

    def start(self, num_rows: int, capacity: int) -> TorchRows:
        return TorchRows(num_rows)

    def extend(
        self,
        state: TorchRows,
        rows: Sequence[int],
        features: Sequence[Any],
        tokens: Sequence[Sequence[int]],
    ) -> Logits:
        counts = [len(row_tokens) for row_tokens in tokens]
        owners = np.repeat(rows, counts)
        slots = np.concatenate(
            [state.lengths[row] + np.arange(count) for row, count in zip(rows, counts, strict=True)]
        )
        last = np.cumsum(counts) - 1
        with torch.inference_mode():
            hidden = torch.cat([torch.as_tensor(part).to(self._like) for part in features])
            fused = self.network.features(hidden)
            queries = self._write(state, fused, owners, slots, slots, np.concatenate(tokens))
            for row, count in zip(rows, counts, strict=True):
                state.lengths[row] += count
                state.nodes[row], state.paths[row] = [], []
            seen = [range(state.lengths[row]) for row in rows]
            outputs, logits = self._finish(state, rows, seen, fused[last], queries[last])
        state.last.update(zip(rows, outputs, strict=True))
        return logits

    def step(
        self, state: TorchRows, rows: Sequence[int], parents: Sequence[int], tokens: Sequence[int]
    ) -> Logits:
        features, slots, positions, seen = [], [], [], []
        for row, parent in zip(rows, parents, strict=True):
            length, nodes, paths = state.lengths[row], state.nodes[row], state.paths[row]
            node = len(paths)
            features.append(state.last[row] if parent < 0 else nodes[parent])
            paths.append([*(paths[parent] if parent >= 0 else ()), node])
            slots.append(length + node)
            positions.append(length + len(paths[node]) - 1)
            seen.append([*range(length), *(length + ancestor for ancestor in paths[node])])
        with torch.inference_mode():
            stacked = torch.stack(features)
            where = np.asarray(rows), np.asarray(slots), np.asarray(positions)
            queries = self._write(state, stacked, *where, np.asarray(tokens))
            outputs, logits = self._finish(state, rows, seen, stacked, queries)
        for row, output in zip(rows, outputs, strict=True):
            state.nodes[row].append(output)
        return logits

    def release(self, state: TorchRows, row: int) -> None:
        state.lengths[row] = 0
        state.nodes[row], state.paths[row] = [], []

    @property
    def _like(self) -> Tensor:
        """A tensor of the right device and precision."""
        return self.network.head.weight

    def _write(
        self, state: TorchRows, features: Tensor, rows: Any, slots: Any, positions: Any, tokens: Any
    ) -> Tensor:
        """Store the keys and values of entries (N, D); their queries (N, H, d)."""
        device = self._like.device
        known = torch.as_tensor(tokens, device=self.embedding.device)
        embeddings = self.embedding[known].to(self._like)
        cos, sin = self.network.angles(torch.as_tensor(positions, device=device))
        queries, keys, values = self.network.project(features, embeddings, cos, sin)
        self._make_room(state, int(slots.max()) + 1, keys)
        index = torch.as_tensor(rows, device=device), torch.as_tensor(slots, device=device)
        state.keys[index], state.values[index] = keys, values
        return queries

    def _make_room(self, state: TorchRows, slots: int, like: Tensor) -> None:
        """Grow at least twofold, so that copying costs O(1) per token on average."""
        have = 0 if state.keys is None else state.keys.shape[1]
        if slots <= have:
            return
        for name in ("keys", "values"):
            larger = like.new_zeros((len(state.lengths), max(slots, 2 * have, 64), *like.shape[1:]))
            if have:
                larger[:, :have] = getattr(state, name)
            setattr(state, name, larger)

    def _finish(
        self,
        state: TorchRows,
        rows: Sequence[int],
        seen: Sequence[Sequence[int]],  # (N,): the slots each entry attends to
        features: Tensor,  # (N, D)
        queries: Tensor,  # (N, H, d)
    ) -> tuple[Tensor, Logits]:
        """Outputs (N, D) and logits (N, Vd) of entries whose keys are stored."""
        most = max(map(len, seen))
        slots = np.zeros((len(rows), most), np.int64)
        is_seen = np.zeros((len(rows), most), bool)
        for entry, visible in enumerate(seen):
            slots[entry, : len(visible)], is_seen[entry, : len(visible)] = visible, True
        device = self._like.device
        owners = torch.as_tensor(np.asarray(rows)[:, None], device=device)
        where = owners, torch.as_tensor(slots, device=device)
        attended = torch.nn.functional.scaled_dot_product_attention(
            queries[:, :, None],
            state.keys[where].transpose(1, 2),
            state.values[where].transpose(1, 2),
            attn_mask=torch.as_tensor(is_seen, device=device)[:, None, None],
            enable_gqa=True,
        )
        outputs = self.network.finish(features, attended.flatten(1))
        return outputs, self.network.logits(outputs).float().cpu().numpy()
