"""The crop strategy: attention caches, where dropping tokens only lowers a length.

Rows with similar numbers of new tokens share a pass and are padded on the right. Padding writes
land past a row's length, where nothing reads them and the next pass overwrites them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import nullcontext
from copy import copy
from dataclasses import replace
from typing import Any

import torch

from forerun.models.attention import Branches, LayerKind, attention_mask
from forerun.models.base import Kept, Parents
from forerun.models.captured_pass import MOST_TOKENS as MOST_CAPTURED
from forerun.models.captured_pass import CapturedPasses
from forerun.models.feed import Feed, feeds
from forerun.models.forward import Forward
from forerun.models.padded_pass import FeedPart, branches, columns, plan
from forerun.models.ragged_cache import Placement, RaggedCache
from forerun.models.watch import Watch

MOST_TOKENS = 1024  # per row in one pass: bounds the mask and the activations of a long prompt
MOST_PADDED = 4096  # in all rows of one pass, padding included


class CropRows:
    """Rows of a model whose layers store nothing but keys and values.

    kinds: the kind of each layer.  capacity: a hint, the number of tokens of the longest row.
    """

    def __init__(
        self, forward: Forward, kinds: list[LayerKind], num_rows: int, capacity: int
    ) -> None:
        self.lengths = [0] * num_rows
        self.watch: Watch | None = None
        self._fed = [Feed()] * num_rows  # since the last commit
        self._forward = forward
        self._kinds = list(dict.fromkeys(kinds))
        self._cache = RaggedCache(kinds, num_rows, capacity)
        self._device = forward.device
        self._dtype = forward.dtype
        self.captured: CapturedPasses | None = None
        if self._device.type == "cuda" and os.environ.get("FORERUN_KERNELS", "1") != "0":
            self.captured = CapturedPasses(forward, self._cache, self._kinds, capture=True)

    def score(
        self,
        rows: Sequence[int],
        tokens: Sequence[Sequence[int]],
        num_logits: Sequence[int],
        parents: Sequence[Parents | None] | None = None,
    ) -> Any:
        """Logits (R, max N, V) after the last tokens of each row.  Rows that were fed the same
        tokens before, by a pass that was not committed, reuse their keys."""
        fed, parts = feeds(tokens, parents), []
        for row, feed, count in zip(rows, fed, num_logits, strict=True):
            end = len(feed.tokens)
            known = self._fed[row].shared(feed, end - count)
            parts.append(FeedPart(row, self.lengths[row], feed, known, end, count))
            self.forget(row, known)  # if the pass is interrupted, its scores must not be reused
        logits = self._score_groups(parts)
        for row, feed in zip(rows, fed, strict=True):
            self._fed[row] = feed
        return logits

    def commit(self, rows: Sequence[int], kept: Sequence[Kept]) -> None:
        """Keep the given number of fed tokens of each row, or a path through its tree, which is
        moved together."""
        paths = [
            self._fed[row].path(row, row_kept) for row, row_kept in zip(rows, kept, strict=True)
        ]
        moves = [
            (row, self.lengths[row] + source, self.lengths[row] + target)
            for row, path in zip(rows, paths, strict=True)
            if not isinstance(path, range)
            for target, source in enumerate(path)
            if source != target
        ]
        if moves:
            self._cache.move(torch.tensor(moves, device=self._device))
        for row, path in zip(rows, paths, strict=True):
            if self.watch is not None:
                self.watch.keep(row, path)
            self.lengths[row] += len(path)
            self._fed[row] = Feed()

    def copy_prefix(self, source: int, row: int, length: int) -> int:
        """Copy the keys and values of the first tokens of `source` to an empty row."""
        length = min(length, self.lengths[source])
        self._cache.copy_row(source, row, length)
        return self._set_prefix(source, row, length)

    def truncate(self, row: int, length: int) -> int:
        return self._set_prefix(row, row, min(length, self.lengths[row]))

    def seen_by(self, forward: Forward) -> CropRows:
        """These rows, with the same lengths and keys, for another pass that has its own scores."""
        other = copy(self)
        other.watch, other._fed, other._forward = None, [Feed()] * len(self.lengths), forward
        if self.captured is not None:
            other.captured = CapturedPasses(forward, self._cache, self._kinds, capture=True)
        return other

    def watch_layers(self, layers: Sequence[int]) -> None:
        """Start watching; scores made before that cannot be reused."""
        self.watch = Watch(layers, self.lengths)
        self._fed = [Feed()] * len(self.lengths)

    def forget(self, row: int, known: int = 0) -> None:
        """Forget all but the first `known` tokens that were scored since the last commit."""
        self._fed[row] = Feed()
        if self.watch is not None:
            self.watch.forget(row, known)

    def release(self, row: int) -> None:
        self.lengths[row] = 0
        self._fed[row] = Feed()
        if self.watch is not None:
            self.watch.release(row)

    def _set_prefix(self, source: int, row: int, length: int) -> int:
        """Record that `row` stores the first `length` tokens of `source` and nothing else."""
        self.lengths[row] = length
        self._fed[row] = Feed()
        if self.watch is not None:
            self.watch.copy(source, row, length)
        return length

    def _score_groups(self, parts: Sequence[FeedPart]) -> Any:
        """Score groups of rows of similar length; logits (R, max N, V) in the order of `parts`."""
        groups = group_rows([len(part) for part in parts])
        if len(groups) == 1:
            return self._score_group(parts)
        logits = None
        for group in groups:
            scored = self._score_group([parts[i] for i in group])
            if logits is None:
                most = max(part.num_logits for part in parts)
                logits = scored.new_zeros((len(parts), most, scored.shape[2]))
            logits[group, : scored.shape[1]] = scored
        return logits

    def _score_group(self, parts: Sequence[FeedPart]) -> Any:
        """Score a group in one pass, or a single long row in several; logits (R, max N, V)."""
        if len(parts) > 1:
            return self._pass(parts)
        whole, scored = parts[0], []
        for begin in range(whole.begin, whole.end, MOST_TOKENS):
            end = min(begin + MOST_TOKENS, whole.end)
            num_logits = min(whole.num_logits - (whole.end - end), end - begin)
            part = replace(whole, begin=begin, end=end, num_logits=max(num_logits, 1))
            logits = self._pass([part])
            if num_logits > 0:
                scored.append(logits)
        return scored[0] if len(scored) == 1 else torch.cat(scored, dim=1)

    def _pass(self, parts: Sequence[FeedPart]) -> Any:
        """Logits of one pass over parts of rows, which lie in one run of the cache or are gathered
        from it."""
        counts, slots = [len(part) for part in parts], [part.slot for part in parts]
        rows = [part.row for part in parts]
        self._cache.reserve_rows(max(rows) + 1)
        width, start = max(counts), max(slots)
        end = start + width
        is_even = min(slots) == start and min(counts) == width
        is_run = rows == list(range(rows[0], rows[0] + len(rows)))
        run = slice(rows[0], rows[-1] + 1)
        trees = branches(parts, width, end, self._device)
        if self.captured is not None and self.watch is None and width <= MOST_CAPTURED:
            return self._captured_pass(self.captured, parts, width, run if is_run else None, trees)
        if is_even and is_run and trees is None:
            ids = torch.tensor(
                [part.tokens for part in parts], dtype=torch.long, device=self._device
            )
            positions = torch.arange(start, end, device=self._device).expand(len(rows), width)
            place = Placement(run, start, start, end)
        else:
            made = plan(parts, width)
            earliest = int(made[1].min())
            ids, positions, at, indices = torch.from_numpy(made).to(self._device)
            place = Placement(run, earliest, start, end)
            if not (is_even and is_run):
                chosen = run if is_run else indices[:, 0].contiguous()
                place = Placement(chosen, earliest, start, end, indices[:, :1], at)
        # Transformers builds the right mask itself if all rows have one length and either nothing
        # is stored or there is one new token.  With full attention it needs none, which is faster.
        mask = None
        if trees is not None or not (is_even and (width == 1 or start == 0)):
            mask = attention_mask(self._kinds, positions, place.earliest, end, self._dtype, trees)
        self._cache.placement = place
        last, index = columns(parts)
        if not isinstance(last, int):
            last = torch.tensor(last, device=self._device)
        arguments = {"output_hidden_states": True} if self.watch is not None else {}
        done = self._forward(
            ids, last, self._cache, position_ids=positions, attention_mask=mask, **arguments
        )
        if self.watch is not None:
            self.watch.see([(part.row, len(part)) for part in parts], done.hidden_states)
        return _picked(done.logits, index)

    def _captured_pass(
        self,
        captured: CapturedPasses,
        parts: Sequence[FeedPart],
        width: int,
        run: slice | None,
        trees: Branches | None,
    ) -> Any:
        """Logits of one pass that is replayed from a CUDA graph."""
        ids, positions, slots, rows = torch.from_numpy(plan(parts, width)).to(self._device)
        end = max(part.slot for part in parts) + width
        chosen = rows[:, 0].contiguous() if run is None else run
        place = Placement(chosen, 0, end - width, end, rows[:, :1], slots)
        with torch.cuda.device(self._device) if ids.is_cuda else nullcontext():
            logits = captured.run(ids, positions, place, trees)
        most = max(part.num_logits for part in parts)
        index = [
            [min(len(part) - part.num_logits + j, len(part) - 1) for j in range(most)]
            for part in parts
        ]
        return _picked(logits, index)


def _picked(logits: Any, index: list[list[int]] | None) -> Any:
    """Logits (R, max N, V): from logits (R, C, V) the columns `index` (R, max N) of each row; None
    takes all columns."""
    if index is None:
        return logits
    gather = torch.tensor(index, device=logits.device)
    return logits[torch.arange(len(index), device=gather.device)[:, None], gather]


def group_rows(counts: Sequence[int]) -> list[list[int]]:
    """Divide rows into groups for one pass each, so that little is padded; returns row numbers.

    counts: the number of tokens of each row.
    A row joins a pass while it has at most about twice the tokens of its shortest row, so less
    than half of a large pass is padding; small passes cost the same whatever is in them.
    """
    groups: list[list[int]] = []
    for index in sorted(range(len(counts)), key=counts.__getitem__):
        count = counts[index]
        group = groups[-1] if groups else []
        fits = group and count <= min(2 * counts[group[0]] + 16, MOST_TOKENS)
        if fits and (count <= 32 or (len(group) + 1) * count <= MOST_PADDED):
            group.append(index)
        else:
            groups.append([index])
    return [sorted(group) for group in groups]
