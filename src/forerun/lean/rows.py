"""Rows of the lean pass: per-row lengths over one preallocated cache.

Tokens of all rows are put behind each other and cut into passes; nothing is padded, because every
token carries its own row and position.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from forerun.lean.attention import Cache, Ints, Plan
from forerun.lean.crew import Crew
from forerun.lean.forward import STAGES_AFTER, STAGES_PER_LAYER, Scratch, Weights, forward
from forerun.lean.linear import Floats, padded
from forerun.lean.tile import LANES, TOKENS
from forerun.models.base import check_commit, shared_prefix

MOST_TOKENS = 128  # in one pass: what they carry should stay in a core's cache


class LeanRows:
    """Rows of one model; the verbs of `LanguageModel` without the checks."""

    def __init__(
        self, weights: Weights, rotary: Any, crew: Crew, num_rows: int, capacity: int
    ) -> None:
        self.lengths = [0] * num_rows
        self._fed: list[list[int]] = [[] for _ in range(num_rows)]  # since the last commit
        self._weights = weights
        self._rotary = rotary
        self._crew = crew
        self._capacity = capacity
        self._cache = self._allocate(LANES)
        self._scratch = _scratch(weights, TOKENS)

    def score(
        self, rows: Sequence[int], tokens: Sequence[Sequence[int]], num_logits: Sequence[int]
    ) -> Any:
        """Logits (R, max(num_logits), V), as a torch tensor."""
        parts, starts = [], []
        for row, row_tokens, count in zip(rows, tokens, num_logits, strict=True):
            known = shared_prefix(self._fed[row], row_tokens, len(row_tokens) - count)
            parts.append(row_tokens[known:])
            starts.append(self.lengths[row] + known)
            self._fed[row] = []  # nothing to build on if a pass is interrupted
        self._reserve(max(start + len(part) for start, part in zip(starts, parts, strict=True)))
        width, vocab = max(num_logits), len(self._weights.embedding)
        logits = np.empty((len(rows) * width, vocab), np.float32)
        flat = _flatten(rows, starts, parts, num_logits, width)  # (4, tokens)
        for begin in range(0, flat.shape[1], MOST_TOKENS):
            self._pass(flat[:, begin : begin + MOST_TOKENS], logits)
        for row, row_tokens in zip(rows, tokens, strict=True):
            self._fed[row] = list(row_tokens)
        return torch.from_numpy(logits.reshape(len(rows), width, vocab))

    def commit(self, rows: Sequence[int], kept: Sequence[int]) -> None:
        check_commit(rows, [len(self._fed[row]) for row in rows], kept)
        for row, count in zip(rows, kept, strict=True):
            self.lengths[row] += count
            self._fed[row] = []

    def release(self, row: int) -> None:
        self.lengths[row] = 0
        self._fed[row] = []

    def _pass(self, flat: Ints, logits: Floats) -> None:
        weights, count = self._weights, flat.shape[1]
        ids, rows, positions, places = flat
        if count > len(self._scratch.x):
            self._scratch = _scratch(weights, min(MOST_TOKENS, 2 * count))
        wanted = np.flatnonzero(places >= 0)
        tiles = _tiles(rows, weights.heads.queries // weights.heads.keys)
        parts = np.arange(count), ids, rows, positions, tiles, wanted, places[wanted]
        plan = Plan(*map(np.ascontiguousarray, parts))
        stages = STAGES_PER_LAYER * len(weights.head_norms) + STAGES_AFTER
        self._crew.run(stages, forward, weights, plan, self._cache, self._scratch, logits)

    def _reserve(self, longest: int) -> None:
        """Room for texts of that length: at least twice what there was, up to the capacity."""
        old = self._cache
        if longest <= old.slots:
            return
        slots = padded(max(longest, min(2 * old.slots, self._capacity)))
        self._cache = new = self._allocate(slots)
        new.keys[:, :, :, : old.slots // LANES] = old.keys
        new.values[:, :, :, : old.slots] = old.values

    def _allocate(self, slots: int) -> Cache:
        """Zeros, because a value that is not to be seen is still multiplied, by zero."""
        heads = self._weights.heads
        shape = len(self._weights.head_norms), len(self.lengths), heads.keys
        cos, sin = self._rotary(slots)
        return Cache(
            keys=np.zeros((*shape, slots // LANES, heads.size, LANES), np.float32),
            values=np.zeros((*shape, slots, heads.wide), np.float32),
            slots=slots,
            cos=cos,
            sin=sin,
        )


def _scratch(weights: Weights, num_tokens: int) -> Scratch:
    heads, m = weights.heads, weights.matrices
    hidden, group = weights.embedding.shape[1], heads.queries // heads.keys
    return Scratch(
        x=np.empty((num_tokens, hidden), np.float32),
        normed=np.empty((num_tokens, hidden), np.float32),
        qkv=np.empty((num_tokens, m.output_at[1]), np.float32),
        queries=np.empty((heads.keys, num_tokens * group, heads.size), np.float32),
        mixed=np.empty((num_tokens, heads.queries * heads.size), np.float32),
        inner=np.empty((num_tokens, m.depth[3]), np.float32),
    )


def _flatten(
    rows: Sequence[int],
    starts: Sequence[int],
    tokens: Sequence[Sequence[int]],
    num_logits: Sequence[int],
    width: int,
) -> Ints:
    """Ids, rows, positions and places of logits (or -1) of all tokens, (4, tokens)."""
    parts = []
    for index, (row, start, own, count) in enumerate(
        zip(rows, starts, tokens, num_logits, strict=True)
    ):
        part = np.full((4, len(own)), -1, np.int64)
        part[0], part[1] = own, row
        part[2] = np.arange(start, start + len(own))
        part[3, len(own) - count :] = np.arange(index * width, index * width + count)
        parts.append(part)
    return np.concatenate(parts, axis=1)


def _tiles(rows: Ints, group: int) -> Ints:
    """Runs of at most TOKENS queries of one row: first and count, (tiles, 2)."""
    edges = [0, *(np.flatnonzero(np.diff(rows)) + 1).tolist(), len(rows)]
    tiles = [
        (first, min(TOKENS, end * group - first))
        for begin, end in pairwise(edges)
        for first in range(begin * group, end * group, TOKENS)
    ]
    return np.array(tiles, np.int64)
