"""A drafting network on the lean CPU pass: what `TorchRunner` computes, in one compiled call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from forerun.drafters.heads.network import Network
from forerun.drafters.heads.runner import Logits
from forerun.lean.attention import Heads
from forerun.lean.cache import allocate, reserve
from forerun.lean.crew import Crew
from forerun.lean.heads_pass import NUM_STAGES, HeadsScratch, HeadsWeights, draft
from forerun.lean.linear import Floats, alternate
from forerun.lean.plan import MOST_TOKENS, Lot, passes
from forerun.lean.shape import LANES, TOKENS
from forerun.lean.storage import padded
from forerun.lean.weights import as_array, join
from forerun.models.feed import Feed

NO_STATES = np.empty((0, 0), np.float32)


class LeanHeadsRows:
    """Keys and values of verified entries, then of tentative nodes in their order."""

    def __init__(self, runner: LeanRunner, num_rows: int, capacity: int) -> None:
        weights = runner.weights
        self.lengths = [0] * num_rows  # verified entries
        self.capacity = capacity
        self.paths: list[list[list[int]]] = [[] for _ in range(num_rows)]  # to each node, itself
        self.outputs: list[list[Any]] = [[] for _ in range(num_rows)]  # of the last entry and nodes
        self.cache = allocate(1, num_rows, weights.heads, runner.angles, LANES)
        self.scratch = _scratch(weights, TOKENS)


class LeanRunner:
    """A `Runner` in float32 on the CPU, for a network whose target is there too."""

    def __init__(self, network: Network, embedding: Any, num_threads: int | None = None) -> None:
        """embedding: (V, D), the target's."""
        self.weights = take(network, as_array(embedding))
        self._theta = network.design.rope_theta
        self._num_tokens = network.design.num_tokens
        self._crew = Crew(num_threads)

    def start(self, num_rows: int, capacity: int) -> LeanHeadsRows:
        return LeanHeadsRows(self, num_rows, capacity)

    def extend(
        self,
        state: LeanHeadsRows,
        rows: Sequence[int],
        features: Sequence[Any],
        tokens: Sequence[Sequence[int]],
    ) -> Logits:
        lots = []
        for index, (row, own) in enumerate(zip(rows, tokens, strict=True)):
            places = np.full(len(own), -1)
            places[-1] = index
            lots.append(Lot.of(row, state.lengths[row], Feed(own), 0, places))
        hidden = np.concatenate([np.asarray(part, np.float32) for part in features])
        outputs, logits = self._run(state, lots, hidden, None)
        for row, own, output in zip(rows, tokens, outputs, strict=True):
            state.lengths[row] += len(own)
            state.paths[row], state.outputs[row] = [], [output]
        return logits

    def step(
        self,
        state: LeanHeadsRows,
        rows: Sequence[int],
        parents: Sequence[int],
        tokens: Sequence[int],
    ) -> Logits:
        members: dict[int, list[int]] = {}
        for index, row in enumerate(rows):
            members.setdefault(row, []).append(index)
        order = [index for own in members.values() for index in own]
        features = np.stack([state.outputs[rows[i]][parents[i] + 1] for i in order])
        lots = []
        for row, own in members.items():
            paths, length = state.paths[row], state.lengths[row]
            first = len(paths)
            for index in own:
                parent = parents[index]
                paths.append([*(paths[parent] if parent >= 0 else ()), len(paths)])
            new = paths[first:]
            lots.append(
                Lot(
                    row,
                    ids=[tokens[index] for index in own],
                    positions=np.array([length + len(path) - 1 for path in new]),
                    slots=np.arange(length + first, length + len(paths)),
                    before=np.full(len(new), length),
                    branch=length + np.concatenate(new),
                    num_branch=np.array([len(path) for path in new]),
                    places=np.array(own),
                )
            )
        outputs, logits = self._run(state, lots, NO_STATES, features)
        for index, output in zip(order, outputs, strict=True):
            state.outputs[rows[index]].append(output)
        return logits

    def release(self, state: LeanHeadsRows, row: int) -> None:
        state.lengths[row] = 0
        state.paths[row], state.outputs[row] = [], []

    def angles(self, slots: int) -> tuple[Floats, Floats]:
        """Cosines and sines (slots, head size / 2)."""
        half = self.weights.heads.size // 2
        exponents = np.arange(half, dtype=np.float32) / np.float32(half)
        turns = np.arange(slots, dtype=np.float32)[:, None] * self._theta**-exponents
        return np.cos(turns).astype(np.float32), np.sin(turns).astype(np.float32)

    def _run(
        self, state: LeanHeadsRows, lots: Sequence[Lot], hidden: Floats, features: Floats | None
    ) -> tuple[Floats, Logits]:
        """Outputs in the order of the tokens that are wanted, and logits at their places."""
        weights, heads = self.weights, self.weights.heads
        longest = max(int(lot.slots[-1]) + 1 for lot in lots)
        state.cache = reserve(state.cache, heads, self.angles, longest, state.capacity)
        num_wanted = sum(int((lot.places >= 0).sum()) for lot in lots)
        logits = np.empty((num_wanted, self._num_tokens), np.float32)
        outputs = np.empty((num_wanted, weights.embedding.shape[1]), np.float32)
        begin = done = 0
        for plan in passes(lots, heads.queries // heads.keys, wanted_only=True):
            end, ready = begin + len(plan.ids), done + len(plan.wanted)
            if end - begin > len(state.scratch.features):
                state.scratch = _scratch(weights, min(MOST_TOKENS, 2 * (end - begin)))
            if features is not None:
                state.scratch.features[: end - begin] = features[begin:end]
            self._crew.run(
                NUM_STAGES, draft, weights, plan, state.cache, state.scratch, hidden[begin:end],
                outputs[done:ready], logits,
            )  # fmt: skip
            begin, done = end, ready
        return outputs, logits


def take(network: Network, embedding: Floats) -> HeadsWeights:
    """The weights, copied into panels of the fewest bits that keep them."""
    design = network.design
    gates, ups = np.split(as_array(network.gate_up.weight), 2)
    matrices = [
        as_array(network.fuse.weight),
        as_array(network.qkv.weight),
        as_array(network.output.weight),
        alternate(gates, ups),
        as_array(network.down.weight),
        as_array(network.head.weight),
    ]
    norms = network.norm_feature, network.norm_embedding, network.norm_mlp, network.norm_head
    return HeadsWeights(
        matrices=join((matrix, np.zeros(len(matrix), np.float32)) for matrix in matrices),
        embedding=embedding,
        layer_norms=as_array(network.norm_layers.weight).reshape(-1, design.hidden_size),
        norms=np.stack([as_array(norm.weight) for norm in norms]),
        head_norms=np.ones((2, design.head_size), np.float32),
        heads=Heads(
            queries=design.num_heads,
            keys=design.num_kv_heads,
            size=design.head_size,
            wide=padded(design.head_size),
            scale=np.float32(design.head_size**-0.5),
            has_norms=False,
            eps=np.float32(0),
        ),
        eps=np.float32(design.norm_eps),
    )


def _scratch(weights: HeadsWeights, num_tokens: int) -> HeadsScratch:
    heads, m = weights.heads, weights.matrices
    hidden, inner = weights.embedding.shape[1], heads.queries * heads.size

    def room(*shape: int) -> Floats:
        return np.empty(shape, np.float32)

    return HeadsScratch(
        hidden=room(num_tokens, weights.layer_norms.size),
        features=room(num_tokens, hidden),
        joined=room(num_tokens, 2 * hidden),
        qkv=room(num_tokens, inner + 2 * heads.keys * heads.size),
        queries=room(heads.keys, num_tokens * (heads.queries // heads.keys), heads.size),
        mixed=room(num_tokens, inner),
        gathered=room(num_tokens, inner),
        normed=room(num_tokens, hidden),
        inner=room(num_tokens, int(m.depth[4])),
    )
