"""Keys and values of rows, in pages of PAGE slots.

A row has a list of pages; slot s lies in page s // PAGE.  Storage grows by single pages, so nothing
is copied to make room, and released pages are reused.  Rows that begin with the same text share
pages; a shared page is copied when one of its rows is about to write to it.

The system clears memory when it is first written to.  Rows that reach the end of a page in the same
pass would wait for all of theirs, so that is done little by little in the passes before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from forerun.lean.attention import PAGE, Cache, HeadShape
from forerun.lean.linear import Floats
from forerun.lean.plan import Ints
from forerun.lean.shape import LANES
from forerun.models.base import room

Rotary = Callable[[int, int], tuple[Floats, Floats]]
"""Cosines and sines (tables, end - begin, head size / 2) of the positions `begin` to `end`."""

LINE = 64  # bytes of a cache line
CLEARED = 1024  # numbers that the system clears at once, at least
CHUNK = 8  # pages that are allocated together
ANGLES = 512  # positions by which the rotary table grows


@dataclass(eq=False)
class Page:
    """PAGE slots of all layers.  For each layer and head the keys lie right before the values."""

    numbers: Floats  # (layers, heads, PAGE * (head size + padded head size))
    heads: HeadShape
    num_holders: int = 0  # rows; one more for a page that was copied out

    @property
    def keys(self) -> Floats:
        """(layers, heads, PAGE / LANES, head size, LANES)"""
        numbers = self.numbers[:, :, : PAGE * self.heads.size]
        return numbers.reshape(*numbers.shape[:2], PAGE // LANES, self.heads.size, LANES)

    @property
    def values(self) -> Floats:
        """(layers, heads, padded head size / LANES, PAGE, LANES)"""
        numbers = self.numbers[:, :, PAGE * self.heads.size :]
        return numbers.reshape(*numbers.shape[:2], self.heads.wide // LANES, PAGE, LANES)


def empty_pages(count: int, num_layers: int, heads: HeadShape) -> list[Page]:
    """Uninitialised pages in one piece of memory.  It begins with a cache line; the system takes
    huge pages for it where it is large, and only once it is written to."""
    shape = count, num_layers, heads.keys, PAGE * (heads.size + heads.wide)
    memory = np.empty(4 * math.prod(shape) + LINE, np.uint8)
    begin = -memory.ctypes.data % LINE
    numbers = memory[begin : begin + memory.size - LINE].view(np.float32).reshape(shape)
    return [Page(part, heads) for part in numbers]


class Pages:
    """The pages of all rows, and the tables that compiled code reads."""

    def __init__(self, num_layers: int, num_rows: int, heads: HeadShape, rotary: Rotary) -> None:
        self.num_allocated = 0
        self._num_layers = num_layers
        self._heads = heads
        self._rotary = rotary
        self._rows: list[list[Page]] = [[] for _ in range(num_rows)]  # pages of each
        self._free: list[Page] = []  # given back, or cleared ahead of their use
        self._fresh: list[Page] = []  # never written to, but for the beginning of the last one
        self._num_cleared = 0  # numbers of the last fresh page
        self.cache = Cache(np.zeros((1, 1), np.int64), *rotary(0, ANGLES))

    @property
    def num_used(self) -> int:
        """Pages that rows hold."""
        return self.num_allocated - len(self._free) - len(self._fresh)

    def of_row(self, row: int, length: int) -> list[Page]:
        """The pages of the first `length` slots of a row."""
        return self._rows[row][: num_pages(length)]

    def reserve(self, row: int, begin: int, end: int) -> None:
        """Let a row write the slots from `begin` to `end`; it has those before."""
        pages = self._rows[row]
        for index in range(begin // PAGE, min(len(pages), num_pages(end))):
            if (shared := pages[index]).num_holders > 1:
                pages[index] = self._new_page()
                pages[index].numbers[...] = shared.numbers
                self._drop(shared)
                self._write_addresses(row, index)
        num_held, num_needed = len(pages), num_pages(end)
        if num_needed > num_held:
            pages += [self._new_page() for _ in range(num_needed - num_held)]
            self._write_addresses(row, num_held)
        self._extend_angles(end)
        self._clear_ahead(end - begin)

    def copy_out(self, row: int, length: int) -> list[Page]:
        """Copies of these pages, which rows may share; they are never written to or reused."""
        pages = self.of_row(row, length)
        copies = empty_pages(len(pages), self._num_layers, self._heads)
        for page, copy in zip(pages, copies, strict=True):
            copy.numbers[...] = page.numbers
            copy.num_holders = 1
        return copies

    def share(self, pages: Sequence[Page], row: int) -> None:
        """Let a row begin with these pages, instead of those it has."""
        for page in pages:
            page.num_holders += 1
        self.cut(row, 0)
        self._rows[row] = list(pages)
        self._write_addresses(row, 0)

    def cut(self, row: int, length: int) -> None:
        """Give back the pages of a row that its first `length` slots do not need."""
        pages = self._rows[row]
        for page in pages[num_pages(length) :]:
            self._drop(page)
        del pages[num_pages(length) :]

    def move(self, row: int, old: Ints, new: Ints) -> None:
        """Copy slots `old` (N,) of a row to `new` (N,); both ascend, and no slot moves up."""
        pages = self._rows[row]
        moves = np.stack([old, new], 1)  # (N, 2)
        for index, pairs in groupby(moves, lambda move: (move // PAGE).tolist()):
            here, there = np.stack(list(pairs), 1) % PAGE
            read, written = pages[index[0]], pages[index[1]]
            keys = read.keys[:, :, here // LANES, :, here % LANES]
            written.keys[:, :, there // LANES, :, there % LANES] = keys
            written.values[:, :, :, there] = read.values[:, :, :, here]

    def _new_page(self) -> Page:
        if self._free:
            page = self._free.pop()
        else:
            page = self._fresh_page()
            self._fresh.pop()
            self._num_cleared = 0
        page.num_holders = 1
        return page

    def _fresh_page(self) -> Page:
        """The next page that was never used; it stays where it is."""
        if not self._fresh:
            self.num_allocated += CHUNK
            self._fresh = empty_pages(CHUNK, self._num_layers, self._heads)[::-1]
        return self._fresh[-1]

    def _clear_ahead(self, num_slots: int) -> None:
        """Write to the share of a page that so many slots are, if rows could need it at once."""
        if len(self._free) >= sum(map(bool, self._rows)):
            return
        page = self._fresh_page()
        size = page.numbers.size
        end = min(size, self._num_cleared + -(-size * num_slots // PAGE))
        page.numbers.reshape(-1)[self._num_cleared : end : CLEARED] = 0
        self._num_cleared = end
        if end == size:
            self._free.append(self._fresh.pop())
            self._num_cleared = 0

    def _drop(self, page: Page) -> None:
        page.num_holders -= 1
        if page.num_holders == 0:
            self._free.append(page)

    def _write_addresses(self, row: int, first: int) -> None:
        """Enter the pages of a row from the `first` on into the table, which may have to grow."""
        pages, table = self._rows[row], self.cache.pages
        needed = row + 1, len(pages)
        if needed[0] > table.shape[0] or needed[1] > table.shape[1]:
            shape = [
                room(have, need, 0) if need > have else have
                for have, need in zip(table.shape, needed, strict=True)
            ]
            larger = np.zeros(shape, np.int64)
            larger[: table.shape[0], : table.shape[1]] = table
            self.cache, table = self.cache._replace(pages=larger), larger
        for index in range(first, len(pages)):
            table[row, index] = pages[index].numbers.ctypes.data

    def _extend_angles(self, end: int) -> None:
        known = self.cache.cos.shape[1]
        if end > known:
            cos, sin = self._rotary(known, -(-end // ANGLES) * ANGLES)
            self.cache = self.cache._replace(
                cos=np.concatenate([self.cache.cos, cos], 1),
                sin=np.concatenate([self.cache.sin, sin], 1),
            )


def num_pages(length: int) -> int:
    """How many pages hold so many slots."""
    return -(-length // PAGE)
