"""Keys and values of rows, in pages of PAGE slots.

A row has a list of pages (`models/pages.py`).  Storage grows by single pages, so nothing is copied
to make room, and released pages are reused.

Pages are allocated in chunks.  In a chunk the keys of one head lie page after page, and then its
values, so that a long text is read from memory in long runs.  Keys of slots that are not yet in use
are multiplied with the others of their panel, and the products are discarded.  Pages are cleared
before use, because leftovers may be subnormal, and products of these take a hundred times as long
on x86.  Clearing takes time, also in the system, which clears memory when it is first written to,
and several rows may need a page in one pass; so the next chunk is cleared little by little in the
passes before.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from forerun.lean.attention import PAGE, Cache, HeadShape
from forerun.lean.linear import Floats
from forerun.lean.plan import Ints
from forerun.lean.shape import LANES
from forerun.models.base import room
from forerun.models.pages import RowPages

Rotary = Callable[[int, int], tuple[Floats, Floats]]
"""Cosines and sines (tables, end - begin, head size / 2) of the positions `begin` to `end`."""

LINE = 64  # bytes of a cache line
FIRST_CHUNK, CHUNK = 2, 8  # pages that are allocated together, at first and at most
ANGLES = 512  # positions by which the rotary table grows


@dataclass(eq=False)
class Page:
    """The keys and values of PAGE slots, for all layers."""

    numbers: Floats  # (layers, heads, 2, PAGE * padded head size): keys and values; strided
    heads: HeadShape
    num_holders: int = 0  # rows that have the page; one more for a page that was copied out
    is_clear: bool = False  # whether its keys have been cleared once

    @property
    def keys(self) -> Floats:
        """A view of the keys: (layers, heads, PAGE / LANES, head size, LANES)."""
        numbers = self.numbers[:, :, 0, : PAGE * self.heads.size]
        return numbers.reshape(*numbers.shape[:2], PAGE // LANES, self.heads.size, LANES)

    @property
    def values(self) -> Floats:
        """A view of the values: (layers, heads, padded head size / LANES, PAGE, LANES)."""
        numbers = self.numbers[:, :, 1]
        return numbers.reshape(*numbers.shape[:2], self.heads.wide // LANES, PAGE, LANES)


def empty_pages(count: int, num_layers: int, heads: HeadShape) -> list[Page]:
    """A chunk of `count` uninitialised pages, aligned to a cache line.  The system provides memory
    when it is first written to, in huge pages if the chunk is large."""
    shape = num_layers, heads.keys, 2, count, PAGE * heads.wide
    memory = np.empty(4 * math.prod(shape) + LINE, np.uint8)
    begin = -memory.ctypes.data % LINE
    numbers = memory[begin : begin + memory.size - LINE].view(np.float32).reshape(shape)
    return [Page(numbers[:, :, :, index], heads) for index in range(count)]


class Pages(RowPages[Page]):
    """The pages of all rows, and the tables that compiled code reads."""

    def __init__(self, num_layers: int, num_rows: int, heads: HeadShape, rotary: Rotary) -> None:
        super().__init__(num_rows, PAGE)
        self.num_allocated = 0
        self._num_layers = num_layers
        self._heads = heads
        self._rotary = rotary
        self._unused: list[Page] = []
        self._next: list[Page] = []  # a chunk that is being cleared
        self._num_cleared = 0  # float32 numbers of `_next` that are zero
        none = np.zeros((1, 1), np.int64)
        self.cache = Cache(none, none.copy(), *rotary(0, ANGLES))

    @property
    def num_used(self) -> int:
        """The number of pages that rows hold."""
        return self.num_allocated - len(self._unused) - len(self._next)

    def reserve(self, row: int, begin: int, end: int) -> None:
        """Give a row pages of its own for slots `begin` to `end`; it has those before `begin`."""
        super().reserve(row, begin, end)
        self._extend_angles(end)
        self._clear_ahead(end - begin)

    def copy_out(self, row: int, length: int) -> list[Page]:
        """Copies of the pages of a row's first `length` slots.  Rows may share them; they are never
        written to or reused."""
        pages = self.of_row(row, length)
        copies = empty_pages(len(pages), self._num_layers, self._heads)
        for page, copy in zip(pages, copies, strict=True):
            copy.numbers[...] = page.numbers
            copy.num_holders = 1
        return copies

    def move(self, row: int, old: Ints, new: Ints) -> None:
        """Copy slots `old` (N,) of a row to `new` (N,). Both are in ascending order, and no slot is
        copied to a later one."""
        pages = self._rows[row]
        moves = np.stack([old, new], 1)  # (N, 2)
        for index, pairs in groupby(moves, lambda move: (move // PAGE).tolist()):
            here, there = np.stack(list(pairs), 1) % PAGE
            read, written = pages[index[0]], pages[index[1]]
            keys = read.keys[:, :, here // LANES, :, here % LANES]
            written.keys[:, :, there // LANES, :, there % LANES] = keys
            written.values[:, :, :, there] = read.values[:, :, :, here]

    def _new_page(self) -> Page:
        if not self._unused:
            self._take_chunk()
        page = self._unused.pop()
        page.num_holders = 1
        if not page.is_clear:
            page.keys[...], page.is_clear = 0, True
        return page

    def _take_chunk(self) -> None:
        """Make the pages of the next chunk available, whether they are cleared or not."""
        self._allocate()
        self._unused += self._next[::-1]
        self._next, self._num_cleared = [], 0

    def _allocate(self) -> None:
        """Allocate the next chunk, if there is none."""
        if not self._next:
            count = min(max(FIRST_CHUNK, self.num_allocated), CHUNK)
            self.num_allocated += count
            self._next = empty_pages(count, self._num_layers, self._heads)

    def _clear_ahead(self, num_slots: int) -> None:
        """Clear a part of the next chunk, if fewer pages are free than rows are in use.

        The part is such that the chunk is clear by the time rows that grow by `num_slots` a pass
        have filled their pages.
        """
        num_rows = sum(map(bool, self._rows))
        if len(self._unused) >= num_rows:
            return
        self._allocate()
        memory: Floats = self._next[0].numbers.base.view(np.float32)  # type: ignore[union-attr]
        share = -(-memory.size * num_slots // (PAGE * min(num_rows, len(self._next))))
        end = self._num_cleared + share
        memory[self._num_cleared : end] = 0
        self._num_cleared = end
        if end >= memory.size:
            for page in self._next:
                page.is_clear = True
            self._take_chunk()

    def _copy(self, page: Page, to: Page) -> None:
        to.numbers[...] = page.numbers

    def _free(self, page: Page) -> None:
        self._unused.append(page)

    def _note(self, row: int, first: int) -> None:
        """Write the addresses of a row's pages, from number `first` on, into the tables, which grow
        if they must."""
        pages, tables = self._rows[row], (self.cache.pages, self.cache.apart)
        have, need = tables[0].shape, (row + 1, len(pages))
        if need[0] > have[0] or need[1] > have[1]:
            shape = [room(a, b, 0) if b > a else a for a, b in zip(have, need, strict=True)]
            larger = np.zeros((2, *shape), np.int64)
            larger[:, : have[0], : have[1]] = tables
            tables = larger[0], larger[1]
            self.cache = self.cache._replace(pages=tables[0], apart=tables[1])
        for index in range(first, len(pages)):
            numbers = pages[index].numbers
            tables[0][row, index] = numbers.ctypes.data
            tables[1][row, index] = numbers.strides[2]

    def _extend_angles(self, end: int) -> None:
        """Let the rotary tables cover positions up to `end`."""
        known = self.cache.cos.shape[1]
        if end > known:
            cos, sin = self._rotary(known, -(-end // ANGLES) * ANGLES)
            self.cache = self.cache._replace(
                cos=np.concatenate([self.cache.cos, cos], 1),
                sin=np.concatenate([self.cache.sin, sin], 1),
            )
