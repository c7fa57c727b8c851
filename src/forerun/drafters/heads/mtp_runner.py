"""Runs MTP layers that are made of transformers' modules.

A single layer makes all guesses: it goes on from its own output. Of several each makes one guess,
from what the layer before it made of the same tokens, and the draft ends with the last. So layer k
joins the feature of token t with token t + 1 + k, and of the last k tokens of a text it knows what
follows only along a draft: these entries are computed anew for every node that it serves, and what
it keeps of a text ends before them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from forerun.drafters.heads.mtp_stages import Stage
from forerun.drafters.heads.runner import Logits
from forerun.models.crop import group_rows

MOST_TOKENS = 512  # per row in one pass: bounds the mask


class Pairs(NamedTuple):
    """The keys (KV, S, d) and values (KV, S, e) of some entries."""

    keys: Tensor
    values: Tensor


class Kept:
    """What one layer keeps of one row's text."""

    def __init__(self) -> None:
        self.count = 0  # entries
        self.last: Tensor | None = None  # (1, D): what follows the last of them as a feature
        self._room: Pairs | None = None

    def pairs(self) -> list[Pairs]:
        """Keys and values of all entries; empty for an empty row."""
        room, count = self._room, self.count
        return [Pairs(*(part[:, :count] for part in room))] if room and count else []

    def append(self, new: Pairs) -> None:
        """Store entries; the room grows twofold, so that copying costs O(1) per token."""
        end = self.count + new.keys.shape[1]
        if self._room is None or end > self._room.keys.shape[1]:
            parts = []
            for old, part in zip(self._room or new, new, strict=True):
                larger = part.new_zeros((part.shape[0], max(64, 2 * end), part.shape[2]))
                larger[:, : self.count] = old[:, : self.count]
                parts.append(larger)
            self._room = Pairs(*parts)
        for room, part in zip(self._room, new, strict=True):
            room[:, self.count : end] = part
        self.count = end


class Node(NamedTuple):
    """A guess that the layers went on from."""

    tokens: list[int]  # from the draft's first guess to this one
    features: Tensor  # (N, D): the features that its layer made of the last entries
    pairs: list[Pairs]  # of the guesses up to this one, where a single layer makes all


class Job(NamedTuple):
    """Entries of one row for one layer."""

    features: Tensor  # (N, D)
    tokens: Sequence[int]  # (N,)
    past: Sequence[Pairs]  # of the entries before them, in order


class Rows:
    """The rows of a batch: what each layer keeps of each, and the nodes of its draft."""

    def __init__(self, num_rows: int, num_layers: int) -> None:
        self.kept = [[Kept() for _ in range(num_layers)] for _ in range(num_rows)]
        self.nodes: list[list[Node]] = [[] for _ in range(num_rows)]


class StageRunner:
    """A `Runner` of MTP layers.

    norms_output: a layer's output goes on after the norm of the head.
    gains: (D,), factors of the target's states, or None.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        rotary: Any,
        embedding: Tensor,  # (V, D), as the head
        head: Tensor,
        *,
        norms_output: bool,
        gains: Tensor | None = None,
    ) -> None:
        self.stages, self.rotary = stages, rotary
        self.embedding, self.head = embedding, head
        self.norms_output, self.gains = norms_output, gains

    @property
    def reach(self) -> int | None:
        """The most guesses that follow one another; None: no limit."""
        return len(self.stages) if len(self.stages) > 1 else None

    def start(self, num_rows: int, capacity: int) -> Rows:
        return Rows(num_rows, len(self.stages))

    def extend(
        self,
        state: Rows,
        rows: Sequence[int],
        features: Sequence[Any],
        tokens: Sequence[Sequence[int]],
    ) -> Logits:
        with torch.inference_mode():
            given = [self._taken(part) for part in features]
            firsts: list[Tensor] = []
            for number in range(len(self.stages)):
                kept = [state.kept[row][number] for row in rows]
                before = [each.last for each in kept]
                outputs = self._read(number, kept, given, tokens)
                if number == 0:
                    firsts = [part[-1:] for part in outputs]
                given = []
                for each, last, made in zip(kept, before, outputs, strict=True):
                    following = _joined([last, self._following(number, made)])
                    each.last, made = following[-1:], following[:-1]
                    given.append(made)
            for row in rows:
                state.nodes[row] = []
            return self._logits(0, torch.cat(firsts))

    def step(
        self, state: Rows, rows: Sequence[int], parents: Sequence[int], tokens: Sequence[int]
    ) -> Logits:
        jobs: list[tuple[int, Job]] = []
        for row, parent, token in zip(rows, parents, tokens, strict=True):
            node = state.nodes[row][parent] if parent >= 0 else None
            jobs.append(self._job(state.kept[row], node, token))
        logits = np.empty((len(jobs), len(self.head)), np.float32)
        groups = defaultdict(list)
        for index, (number, _) in enumerate(jobs):
            groups[number].append(index)
        made: dict[int, Node] = {}
        with torch.inference_mode():
            for number, group in groups.items():
                results = self._compute(number, [jobs[index][1] for index in group])
                for index, (outputs, pairs) in zip(group, results, strict=True):
                    parent, row = parents[index], rows[index]
                    path = state.nodes[row][parent].tokens if parent >= 0 else []
                    job = jobs[index][1]
                    own = [*job.past[1:], pairs] if self.reach is None else []
                    following = self._following(number, outputs)
                    made[index] = Node([*path, tokens[index]], following, own)
                last = torch.cat([outputs[-1:] for outputs, _ in results])
                logits[group] = self._logits(number, last)
        for index, row in enumerate(rows):
            state.nodes[row].append(made[index])
        return logits

    def release(self, state: Rows, row: int) -> None:
        state.kept[row] = [Kept() for _ in self.stages]
        state.nodes[row] = []

    def _job(self, kept: Sequence[Kept], node: Node | None, token: int) -> tuple[int, Job]:
        """The number of the layer that goes on from a guess, and what it has to compute."""
        if self.reach is None:
            (only,) = kept
            before = only.last if node is None else node.features
            assert before is not None, "a row that has no entries cannot draft"
            return 0, Job(before, [token], [*only.pairs(), *(node.pairs if node else ())])
        path = [*(node.tokens if node else ()), token]
        number = len(path)
        features = _joined([kept[number - 1].last, node.features if node else None])
        return number, Job(features, path[-len(features) :], kept[number].pairs())

    def _taken(self, states: Any) -> Tensor:
        """The target's states (N, D) as features."""
        taken = torch.as_tensor(states).to(self.head)
        return taken if self.gains is None else taken * self.gains

    def _read(
        self,
        number: int,
        kept: Sequence[Kept],  # (R,)
        features: Sequence[Tensor],  # (R,) of (N_r, D); none for a row that is still too short
        tokens: Sequence[Sequence[int]],  # (R,): their tokens are the last N_r of these
    ) -> list[Tensor]:
        """Append entries of verified tokens to what a layer keeps; its outputs, (R,) of
        (N_r, D)."""
        outputs = [list[Tensor]() for _ in kept]
        begin = 0
        while busy := [i for i, part in enumerate(features) if len(part) > begin]:
            counts = [min(len(features[i]) - begin, MOST_TOKENS) for i in busy]
            for group in group_rows(counts):
                now = [busy[place] for place in group]
                jobs = []
                for i in now:
                    known = tokens[i][len(tokens[i]) - len(features[i]) :]
                    part = slice(begin, begin + MOST_TOKENS)
                    jobs.append(Job(features[i][part], known[part], kept[i].pairs()))
                for i, (made, pairs) in zip(now, self._compute(number, jobs), strict=True):
                    outputs[i].append(made)
                    kept[i].append(pairs)
            begin += MOST_TOKENS
        none = self.head[:0]
        return [torch.cat([none, *parts]) for parts in outputs]

    def _compute(self, number: int, jobs: Sequence[Job]) -> list[tuple[Tensor, Pairs]]:
        """For each job the outputs (N, D) of a layer, and its keys and values, in one padded
        pass."""
        stage, device = self.stages[number], self.head.device
        counts = [len(job.tokens) for job in jobs]
        known = [sum(pairs.keys.shape[1] for pairs in job.past) for job in jobs]
        width, most = max(counts), max(known)
        features = self.head.new_zeros((len(jobs), width, self.head.shape[1]))
        ids = torch.zeros((len(jobs), width), dtype=torch.long)
        for r, job in enumerate(jobs):
            features[r, : counts[r]] = job.features
            ids[r, : counts[r]] = torch.as_tensor(job.tokens)
        stored = torch.tensor(known, device=device)[:, None]  # (R, 1)
        order = torch.arange(width, device=device)
        positions = stored + order  # (R, N)
        before = torch.arange(most, device=device).expand(len(jobs), most)
        places = torch.cat((before, positions), 1)  # (R, keys): the position of each key
        is_seen = places[:, None] <= positions[:, :, None]  # (R, N, keys)
        is_seen[:, :, :most] &= before[:, None] < stored[:, None]
        if stage.window is not None:
            is_seen &= places[:, None] > positions[:, :, None] - stage.window
        mask = torch.zeros(is_seen.shape, dtype=features.dtype, device=device)
        mask.masked_fill_(~is_seen, torch.finfo(mask.dtype).min)
        cache = _Cache([job.past for job in jobs], most)
        turns = self.rotary(features, positions)
        embeddings = self.embedding[ids.to(self.embedding.device)].to(features)
        outputs = stage(features, embeddings, mask[:, None], positions, turns, cache)
        return [
            (outputs[r, :count], Pairs(*(part[r, :, :count] for part in cache.new)))
            for r, count in enumerate(counts)
        ]

    def _following(self, number: int, outputs: Tensor) -> Tensor:
        """A layer's outputs (N, D) as features for what goes on from them."""
        normed: Tensor = self.stages[number].norm_head(outputs) if self.norms_output else outputs
        return normed

    def _logits(self, number: int, outputs: Tensor) -> Logits:
        """The logits (N, V) of a layer's outputs (N, D)."""
        normed = self.stages[number].norm_head(outputs)
        found: Logits = torch.nn.functional.linear(normed, self.head).float().cpu().numpy()
        return found


class _Cache:
    """Stands for a cache of transformers in one pass of one layer: it puts what is known of each
    row before the new keys and values, and keeps the new ones."""

    def __init__(self, past: Sequence[Sequence[Pairs]], most: int) -> None:
        """most: the number of entries of the longest row."""
        self.past, self.most = past, most
        self.new: tuple[Tensor, Tensor]

    def update(
        self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Keys and values (R, KV, S + N, d) of a pass whose own are (R, KV, N, d)."""
        self.new = keys, values
        return self._after(keys, 0), self._after(values, 1)

    def _after(self, new: Tensor, part: int) -> Tensor:
        rows, heads, _, size = new.shape
        known = new.new_zeros((rows, heads, self.most, size))
        for row, past in enumerate(self.past):
            begin = 0
            for pairs in past:
                end = begin + pairs[part].shape[1]
                known[row, :, begin:end] = pairs[part]
                begin = end
        return torch.cat((known, new), 2)


def _joined(parts: Iterable[Tensor | None]) -> Tensor:
    """Features one after the other, without those that are missing."""
    return torch.cat([part for part in parts if part is not None])
