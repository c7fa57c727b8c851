"""The rows of the lean GPU pass: the methods of `LanguageModel`, without its argument checks.

The tokens of all rows are joined into one list and cut into passes of at most `MOST_TOKENS`.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any, NamedTuple

import numpy as np
import torch

from forerun.gpu.heads_rows import HeadsRows
from forerun.gpu.pool import LOCK
from forerun.gpu.shapes import (
    MOST_LOGITS,
    MOST_TOKENS,
    PER_SEGMENT,
    PassShape,
    num_chunks,
    padded_pass,
)
from forerun.gpu.storage import Storage
from forerun.models.base import Parents
from forerun.models.feed import Feed, feeds
from forerun.models.hidden_states import History
from forerun.models.path_rows import PathRows


class Line(NamedTuple):
    """One token of a pass."""

    token: int
    row: int
    slot: int
    position: int
    before: int  # slots before the tree, for a node
    branch: Sequence[int]  # slots of a node's ancestors and its own; empty for text
    place: int  # of its logits among all that are asked for, or -1


class GpuRows(PathRows):
    """Rows of one model.

    listener: rows of a network that drafts from the hidden states of this model.
    """

    is_always_told = False  # as a drafter: it can read later what it has missed

    def __init__(self, storage: Storage, num_rows: int, capacity: int) -> None:
        super().__init__(num_rows)
        self.storage = storage
        self.capacity = capacity  # of the longest text, 0 if it is not known
        self.listener: HeadsRows | None = None
        self._num_layers = 0  # that a pass runs; 0: all

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers whose hidden states are kept."""
        return self.storage.layers

    def score(
        self,
        rows: Sequence[int],
        tokens: Sequence[Sequence[int]],
        num_logits: Sequence[int],
        parents: Sequence[Parents | None] | None = None,
    ) -> Any:
        """Logits (R, max(num_logits), V), float32 on the device."""
        fed, width, lines = feeds(tokens, parents), max(num_logits), []
        for index, (row, feed, count) in enumerate(zip(rows, fed, num_logits, strict=True)):
            end = len(feed.tokens)
            known = self._fed[row].shared(feed, end - count)
            lines += _lines(row, self.lengths[row], feed, known, end - count, index * width)
            self.forget(row, known)  # nothing to build on if a pass is interrupted
        for row, feed in zip(rows, fed, strict=True):
            self.reserve(row, self.lengths[row], self.lengths[row] + len(feed.tokens))
        vocab = self.storage.weights.head.shape[0]
        size, device = (len(rows) * width, vocab), self.storage.cache.keys.device
        make = torch.empty if min(num_logits) == width else torch.zeros  # no row is left undefined
        logits = make(size, dtype=torch.float32, device=device)
        for part in _passes(lines):
            self._pass(part, logits)
        for row, feed in zip(rows, fed, strict=True):
            self._fed[row] = feed
        return logits.reshape(len(rows), width, vocab)

    def feed(self, parts: Sequence[tuple[int, int, Sequence[int]]]) -> None:
        """Store tokens without asking for logits: row, first slot and tokens of each part."""
        lines = [
            Line(token, row, slot, slot, 0, (), -1)
            for row, begin, tokens in parts
            for slot, token in enumerate(tokens, start=begin)
        ]
        if not lines:
            return
        for row, begin, tokens in parts:
            self.reserve(row, begin, begin + len(tokens))
            self.forget(row)
        for some in _passes(lines):
            self._pass(some, None)

    def hear(self, row: int, states: Any) -> None:
        """Store the states of the tokens fed since the last commit, followed by the states (N, F)
        of the tokens that a captured round has processed after them."""
        if self._history is not None:
            self.kept[row] = self._history.add(row, torch.cat([self._seen[row], states]))
            self.forget(row)

    def tell(self, listener: HeadsRows) -> None:
        """Pass the hidden states of every pass to a network on the device. Nobody else reads states
        of the rows then, so they are not kept."""
        self.listener, self._history = listener, None

    def copy_prefix(self, source: int, row: int, length: int) -> int:
        """Let an empty row share the pages that hold the first tokens of `source`."""
        pages = self.storage.pages
        with LOCK:
            length = min(length, self.lengths[source])
            pages.share(pages.of_row(source, length), row)
        return self._set_prefix(source, row, length)

    def truncate(self, row: int, length: int) -> int:
        with LOCK:
            return super().truncate(row, length)

    def watch(self, layers: Sequence[int]) -> None:
        """Keep states from now on; tokens that were scored before that have to be scored again."""
        self.storage.watch(tuple(layers))
        self._history = History(self.lengths, torch.cat)
        for row in range(len(self.lengths)):
            self.forget(row)

    def shallow(self, num_layers: int) -> GpuRows:
        """Rows with the same lengths and keys for the first layers only; uncommitted scores are
        separate."""
        other = copy(self)
        other._fed, other._history = [Feed()] * len(self.lengths), None
        other._num_layers, other.listener = num_layers, None
        return other

    def forget(self, row: int, known: int = 0) -> None:
        self._fed[row] = Feed()
        if self._history is not None:
            seen = self._seen[row]
            empty = self.storage.watched[:0]
            self._seen[row] = empty if seen is None or known == 0 else seen[:known]

    def has(self, row: int, begin: int, end: int) -> bool:
        """Whether a row has pages of its own for slots `begin` to `end`."""
        return self.storage.pages.has(row, self._first(begin), end)

    def reserve(self, row: int, begin: int, end: int) -> None:
        """Give a row pages of its own for slots `begin` to `end`."""
        self.storage.pages.reserve(row, self._first(begin), end)

    def _first(self, begin: int) -> int:
        """The first slot whose data change if tokens are written from `begin` on. With a drafter
        that reads hidden states it is one earlier, because its entry for a token depends on the
        next token."""
        return begin if self.listener is None else max(0, begin - 1)

    def _move(self, row: int, sources: Any, targets: Any) -> None:
        pages, cache = self.storage.pages, self.storage.cache
        (page, slot), (new_page, new_slot) = pages.places(row, sources), pages.places(row, targets)
        for part in (cache.keys, cache.values):
            in_word = 2 // part.element_size()  # numbers, of slots that are half a page apart
            size = pages.size // in_word
            words = part.view(*part.shape[:3], size, -1, in_word)
            moved = words[:, page, :, slot % size, :, slot // size]
            words[:, new_page, :, new_slot % size, :, new_slot // size] = moved
        if self.listener is not None:
            self.listener.move((page, slot), (new_page, new_slot))

    def _cut(self, row: int, length: int) -> None:
        self.storage.pages.cut(row, length)

    def _pass(self, lines: Sequence[Line], logits: Any) -> None:
        """Run a pass: compute the logits that some of its lines ask for, and store the states of
        all lines."""
        asking = [index for index, line in enumerate(lines) if line.place >= 0]
        shape = shape_of(lines, len(asking))._replace(num_layers=self._num_layers)
        captured = self.storage.captured(shape)
        fill(captured.inputs, lines, asking)
        scored = captured.run()
        if asking:
            places = [lines[index].place for index in asking]
            first, last = places[0], places[-1]
            if last - first + 1 == len(places):
                logits[first : last + 1] = scored[: len(asking)]
            else:
                logits[torch.tensor(places, device=logits.device)] = scored[: len(asking)]
        if self._history is not None:
            self._see(lines)
        if self.listener is not None:
            self.listener.hear(captured.inputs, self.storage.watched)

    def _see(self, lines: Sequence[Line]) -> None:
        """Append the states of a pass to those of the tokens before it."""
        begin = 0
        for end in range(1, len(lines) + 1):
            if end == len(lines) or lines[end].row != lines[begin].row:
                row = lines[begin].row
                states = self.storage.watched[begin:end]
                self._seen[row] = torch.cat([self._seen[row], states])
                begin = end


def _lines(
    row: int, stored: int, feed: Feed, begin: int, first_asked: int, place: int
) -> list[Line]:
    """The tokens from `begin` on that a row with this many stored tokens is fed. Logits are
    requested from `first_asked` on, and are written from `place` on."""
    trunk, positions = feed.trunk, feed.offsets(begin, len(feed.tokens)).tolist()
    lines = []
    for index, offset in zip(range(begin, len(feed.tokens)), positions, strict=True):
        branch: Sequence[int] = ()
        if index >= trunk:
            branch = [stored + trunk + node for node in feed.tree.path(index - trunk)]
        lines.append(
            Line(
                feed.tokens[index],
                row,
                stored + index,
                stored + offset,
                stored + trunk,
                branch,
                place + index - first_asked if index >= first_asked else -1,
            )
        )
    return lines


def _passes(lines: Sequence[Line]) -> list[Sequence[Line]]:
    """Divide all tokens into as many passes as they need."""
    parts, begin, asking = [], 0, 0
    for index, line in enumerate(lines):
        asking += line.place >= 0
        if index - begin == MOST_TOKENS or asking > MOST_LOGITS:
            parts.append(lines[begin:index])
            begin, asking = index, int(line.place >= 0)
    return [*parts, lines[begin:]]


def shape_of(lines: Sequence[Line], num_logits: int) -> PassShape:
    """The smallest captured shape that has room for a pass."""
    segments = segments_of(lines)
    shape = PassShape(
        num_tokens=padded_pass(len(lines)), num_logits=_power(num_logits, least=0),
        num_segments=_power(len(segments)), per_segment=_power(max(count for _, count in segments)),
        num_chunks=num_chunks(max(line.position for line in lines) + 1),
        branch_width=_power(max(len(line.branch) for line in lines), least=0),
    )  # fmt: skip
    return shape._replace(num_chunks=1) if shape.is_whole else shape


def segments_of(lines: Sequence[Line]) -> list[tuple[int, int]]:
    """The first token and the length of each segment, a piece of one row's text. If the pass has a
    tree, every token is a segment of its own."""
    most = 1 if any(line.branch for line in lines) else PER_SEGMENT
    segments: list[tuple[int, int]] = []
    for index, line in enumerate(lines):
        first, count = segments[-1] if segments else (0, most)
        if count < most and lines[first].row == line.row:
            segments[-1] = first, count + 1
        else:
            segments.append((index, 1))
    return segments


def fill(inputs: Any, lines: Sequence[Line], asking: Sequence[int]) -> None:
    """Write a pass into its inputs, in one copy."""
    shape = inputs.shape
    packed = np.zeros(inputs.packed.shape[0], np.int32)
    m, width = shape.num_tokens, shape.branch_width
    table = packed[: 5 * m].reshape(5, m)
    table[1] = -1
    count = len(lines)
    table[:, :count] = np.array([line[:5] for line in lines], np.int32).T
    if width:
        for index, line in enumerate(lines):
            begin = 5 * m + index * width
            branch = line.branch
            if not branch:  # text sees itself like a node without ancestors
                table[4, index] = line.slot
                branch = [line.slot]
            packed[begin : begin + len(branch)] = branch
    at = (5 + width) * m
    packed[at : at + len(asking)] = asking
    segments = np.array(segments_of(lines), np.int32).reshape(-1)
    at += shape.num_logits
    packed[at : at + len(segments)] = segments
    assert count <= m
    inputs.packed.copy_(torch.from_numpy(packed), non_blocking=True)


def _power(count: int, least: int = 1) -> int:
    """The next power of two, but not less than `least`."""
    return least if count <= least else 1 << (count - 1).bit_length()
