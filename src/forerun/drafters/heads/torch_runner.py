"""Runs a drafting network with torch, on the device and in the precision of its weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from forerun.drafters.heads.network import Network
from forerun.drafters.heads.runner import Logits


class TorchRows:
    """The rows' keys and values (layers, rows, slots, KV, d): verified entries, then tentative
    nodes."""

    def __init__(self, num_rows: int) -> None:
        self.lengths = [0] * num_rows  # verified entries
        self.keys: Any = None
        self.values: Any = None
        self.last: dict[int, Tensor] = {}  # (D,): what follows each row's last entry as a feature
        self.nodes: list[list[Tensor]] = [[] for _ in range(num_rows)]  # (D,), of each node
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
            where = owners, slots
            angles = self._angles(slots)
            known = np.concatenate(tokens)
            residual, queries = self._project(state, fused, known, where, angles)
            for row, count in zip(rows, counts, strict=True):
                state.lengths[row] += count
                state.nodes[row], state.paths[row] = [], []
            if self.network.deeper:
                outputs = self.network.add(residual, self._read(state, 0, rows, counts, queries))
                for number, layer in enumerate(self.network.deeper, 1):
                    queries = self._keep(state, number, where, layer.project(outputs, *angles))
                    outputs = layer.add(outputs, self._read(state, number, rows, counts, queries))
                outputs = outputs[last]
            else:
                seen = [range(state.lengths[row]) for row in rows]
                attended = self._attend(state, 0, rows, seen, queries[last])
                outputs = self.network.add(residual[last], attended)
            following, logits = self._results(outputs)
        state.last.update(zip(rows, following, strict=True))
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
            where = np.asarray(rows), np.asarray(slots)
            angles = self._angles(positions)
            residual, queries = self._project(state, stacked, tokens, where, angles)
            attended = self._attend(state, 0, rows, seen, queries)
            outputs = self.network.add(residual, attended)
            for number, layer in enumerate(self.network.deeper, 1):
                queries = self._keep(state, number, where, layer.project(outputs, *angles))
                outputs = layer.add(outputs, self._attend(state, number, rows, seen, queries))
            following, logits = self._results(outputs)
        for row, feature in zip(rows, following, strict=True):
            state.nodes[row].append(feature)
        return logits

    def release(self, state: TorchRows, row: int) -> None:
        state.lengths[row] = 0
        state.nodes[row], state.paths[row] = [], []

    @property
    def _like(self) -> Tensor:
        """A tensor on the right device and in the right precision."""
        return self.network.head.weight

    def _angles(self, positions: Any) -> tuple[Tensor, Tensor]:
        """The cosines and sines (N, d / 2) of these positions."""
        cos, sin = self.network.angles(torch.as_tensor(positions, device=self._like.device))
        return cos, sin

    def _project(
        self, state: TorchRows, features: Tensor, tokens: Any, where: Any, angles: Any
    ) -> tuple[Tensor, Tensor]:
        """Store the first layer's keys and values of entries (N, D). Returns their residual stream,
        (N, D), and their queries (N, H, d)."""
        known = torch.as_tensor(tokens, device=self.embedding.device)
        residual, inputs = self.network.enter(features, self.embedding[known].to(self._like))
        return residual, self._keep(state, 0, where, self.network.split(inputs, *angles))

    def _keep(self, state: TorchRows, layer: int, where: Any, projected: Any) -> Tensor:
        """Store keys and values of entries in their rows and slots. Returns their queries
        (N, H, d).

        where: rows (N,) and slots (N,).
        projected: queries, keys and values.
        """
        queries, keys, values = projected
        rows, slots = where
        self._make_room(state, int(slots.max()) + 1, keys)
        device = self._like.device
        index = torch.as_tensor(rows, device=device), torch.as_tensor(slots, device=device)
        state.keys[layer][index], state.values[layer][index] = keys, values
        kept: Tensor = queries
        return kept

    def _make_room(self, state: TorchRows, slots: int, like: Tensor) -> None:
        """Grow the storage if needed, at least twofold, so that copying costs O(1) per token on
        average."""
        have = 0 if state.keys is None else state.keys.shape[2]
        if slots <= have:
            return
        shape = self.network.design.num_layers, len(state.lengths), max(slots, 2 * have, 64)
        for name in ("keys", "values"):
            larger = like.new_zeros((*shape, *like.shape[1:]))
            if have:
                larger[:, :, :have] = getattr(state, name)
            setattr(state, name, larger)

    def _read(
        self,
        state: TorchRows,
        layer: int,
        rows: Sequence[int],  # (R,)
        counts: Sequence[int],  # (R,): of their last entries
        queries: Tensor,  # (N, H, d) of these
    ) -> Tensor:
        """The attention outputs (N, H * d) of verified entries, over themselves and those before
        them."""
        parts = []
        for row, own in zip(rows, queries.split(list(counts)), strict=True):
            end = state.lengths[row]
            is_seen = torch.ones(len(own), end, dtype=torch.bool, device=own.device)
            attended = torch.nn.functional.scaled_dot_product_attention(
                own.transpose(0, 1)[None],
                state.keys[layer, row, :end].transpose(0, 1)[None],
                state.values[layer, row, :end].transpose(0, 1)[None],
                attn_mask=is_seen.tril(end - len(own)),
                enable_gqa=True,
            )
            parts.append(attended[0].transpose(0, 1).flatten(1))
        return torch.cat(parts)

    def _attend(
        self,
        state: TorchRows,
        layer: int,
        rows: Sequence[int],
        seen: Sequence[Sequence[int]],  # (N,): the slots each entry attends to
        queries: Tensor,  # (N, H, d)
    ) -> Tensor:
        """The attention outputs (N, H * d) of entries over the slots that each may see."""
        most = max(map(len, seen))
        slots = np.zeros((len(rows), most), np.int64)
        is_seen = np.zeros((len(rows), most), bool)
        for entry, visible in enumerate(seen):
            slots[entry, : len(visible)], is_seen[entry, : len(visible)] = visible, True
        device = self._like.device
        owners = torch.as_tensor(np.asarray(rows)[:, None], device=device)
        where = owners, torch.as_tensor(slots, device=device)
        attended: Tensor = torch.nn.functional.scaled_dot_product_attention(
            queries[:, :, None],
            state.keys[layer][where].transpose(1, 2),
            state.values[layer][where].transpose(1, 2),
            attn_mask=torch.as_tensor(is_seen, device=device)[:, None, None],
            enable_gqa=True,
        )
        return attended.flatten(1)

    def _results(self, outputs: Tensor) -> tuple[Tensor, Logits]:
        """The features (N, D) of the next entries and the logits (N, Vd), from the last layer's
        outputs."""
        logits = self.network.logits(outputs).float().cpu().numpy()
        return self.network.next_features(outputs), logits
