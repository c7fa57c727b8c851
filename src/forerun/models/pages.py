"""Keeps track of the pages that rows hold, whatever a page consists of.

Slot s of a row lies in its page s // size.  Rows that begin with the same text share pages; a
shared page is copied when one of its rows is about to write to it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar


class Page(Protocol):
    """A page: the slots of all layers."""

    num_holders: int


Some = TypeVar("Some", bound=Page)


class RowPages(ABC, Generic[Some]):
    """The pages of all rows; a page has `size` slots."""

    def __init__(self, num_rows: int, size: int) -> None:
        self.size = size
        self._rows: list[list[Some]] = [[] for _ in range(num_rows)]

    @abstractmethod
    def _new_page(self) -> Some:
        """A free page, which the caller now holds."""

    @abstractmethod
    def _copy(self, page: Some, to: Some) -> None:
        """Copy the content of a page to another one."""

    @abstractmethod
    def _free(self, page: Some) -> None:
        """Take back a page that has no holder left."""

    @abstractmethod
    def _note(self, row: int, first: int) -> None:
        """Note that the pages of a row have changed from number `first` on."""

    def num_pages(self, length: int) -> int:
        """The number of pages that hold this many slots."""
        return -(-length // self.size)

    def of_row(self, row: int, length: int) -> list[Some]:
        """The pages of the first `length` slots of a row."""
        return self._rows[row][: self.num_pages(length)]

    def num_missing(self, row: int, begin: int, end: int) -> int:
        """The number of free pages that `reserve` would take."""
        pages, needed = self._rows[row], self.num_pages(end)
        shared = sum(page.num_holders > 1 for page in pages[begin // self.size : needed])
        return shared + max(0, needed - len(pages))

    def reserve(self, row: int, begin: int, end: int) -> None:
        """Give a row pages of its own for slots `begin` to `end`; it has those before `begin`."""
        pages, needed = self._rows[row], self.num_pages(end)
        for index in range(begin // self.size, min(len(pages), needed)):
            if (shared := pages[index]).num_holders > 1:
                pages[index] = self._new_page()
                self._copy(shared, pages[index])
                self._drop(shared)
                self._note(row, index)
        held = len(pages)
        if needed > held:
            pages += [self._new_page() for _ in range(needed - held)]
            self._note(row, held)

    def share(self, pages: Sequence[Some], row: int) -> None:
        """Let a row begin with these pages, in place of the pages it has."""
        for page in pages:
            page.num_holders += 1
        self.cut(row, 0)
        self._rows[row] = list(pages)
        self._note(row, 0)

    def cut(self, row: int, length: int) -> None:
        """Give back the pages of a row that its first `length` slots do not need."""
        pages, kept = self._rows[row], self.num_pages(length)
        if len(pages) > kept:
            for page in reversed(pages[kept:]):  # the first is reused first
                self._drop(page)
            del pages[kept:]
            self._note(row, kept)

    def _drop(self, page: Some) -> None:
        """Take a page from one holder."""
        page.num_holders -= 1
        if not page.num_holders:
            self._free(page)
