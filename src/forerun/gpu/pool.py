"""Keys and values of one model on its device, in pages that the rows of all its engines draw on.

A pool is made once, when a row first needs a page. All models that were started on the device by
then share what it has left, with as many pages each: a drafter has room for the texts of its
target. After that nothing grows, and nothing moves whose address a captured graph contains. Page 0
belongs to no row: data written past the pages of a row goes there.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from math import prod
from threading import RLock
from typing import Any
from weakref import ReferenceType, WeakKeyDictionary, WeakSet, ref

import torch

from forerun.base.capturing import LOCK as CAPTURES
from forerun.base.errors import ForerunError, InputError, explain
from forerun.gpu import shapes
from forerun.gpu.weights import Weights
from forerun.models.pages import RowPages

SLACK = 32
"""The number of slots after a text that drafts may be written to."""
MOST_ROWS = 1024
"""The default for the most rows of an engine."""
SHARE = 0.5
"""The share of the free memory that pools take by default."""
SPARED = 1 / 32
"""The share of the device's memory that is left for graphs if a limit for the memory is given."""
FLOAT_BYTES = 4
"""The number of bytes of a logit."""
LOGIT_ROWS = 2 * 2 * shapes.MOST_LOGITS
"""The most rows of logits that all passes together may allocate (`Storage.logits`). There are two
uses, and for each of them buffers of doubling size, which together have twice the rows of the
largest."""
ON_HOST = 256
"""The number of pages of a pool that is not on a GPU."""

LOCK = RLock()
"""Must be held by anyone who takes, frees or moves pages, including those of resting rows."""
_STARTED: WeakSet[Pool] = WeakSet()
"""The pools that rows will need but that have not been made yet."""


class DeviceMemoryError(ForerunError, MemoryError):
    """The device does not have enough memory for the requested keys and values."""


class Paged:
    """Tensors (count, pages, ...) with a place for every page of a pool.

    sizes: of each tensor, without its second axis.
    """

    def __init__(self, sizes: Sequence[tuple[int, ...]], like: Any) -> None:
        self.tensors: list[Any] = []
        self._sizes, self._like = sizes, like

    @property
    def page_bytes(self) -> int:
        """The bytes of a page in these tensors."""
        return sum(map(prod, self._sizes)) * int(self._like.element_size())

    def make(self, num_pages: int) -> None:
        """Allocate the tensors for this many pages."""
        try:
            with torch.inference_mode(False):  # so that they may be changed in either mode
                self.tensors = [
                    self._like.new_zeros((count, num_pages, *size)) for count, *size in self._sizes
                ]
        except torch.cuda.OutOfMemoryError as error:
            raise no_memory(num_pages, self.page_bytes, self._like.device) from error


@dataclass(eq=False)
class Page:
    """One page of a pool, with the slots of all layers."""

    number: int
    num_holders: int = 0


class Pool:
    """The pages of one model.

    rotary: a function that gives cosines and sines (tables, positions, rotated dimensions / 2).
    longest: tokens of the longest text. given: the number of pages, if it does not depend on the
    device's free memory. kv_dtype: "float8" rounds keys and values to 8 bits; None: the precision
    of the model.
    """

    memory: float | int | None = None
    """The part of the device's memory that this process may fill, weights included: a share, or a
    number of bytes; None for the default."""

    def __init__(
        self,
        weights: Weights,
        rotary: Callable[[int], Any],
        longest: int,
        given: int | None = None,
        kv_dtype: str | None = None,
    ) -> None:
        self.size = shapes.CHUNK  # slots of a page
        self.longest = -(-(longest + SLACK) // self.size) * self.size  # with what is drafted
        self.num_pages = self.num_positions = 0
        self._rotary, self._like, self._given = rotary, weights.norm, given
        size = weights.form.num_key_heads, self.size, weights.form.head_size
        like = self._like if kv_dtype is None else self._like.new_empty(0, dtype=torch.uint8)
        self._own = Paged([(len(weights.layers), *size)] * 2, like)
        self.logits_bytes = LOGIT_ROWS * weights.head.shape[0] * FLOAT_BYTES
        self._others: WeakKeyDictionary[Any, Paged] = WeakKeyDictionary()
        self._unused: list[Page] = []
        self._angles: Any = None
        self._streams: list[Any] = []  # streams whose kernels use pages
        self._resting: dict[tuple[DevicePages, int], ReferenceType[Any]] = {}  # longest first

    @property
    def device(self) -> Any:
        return self._like.device

    @property
    def page_bytes(self) -> int:
        """The bytes of a page in all tensors together."""
        return sum(part.page_bytes for part in (self._own, *self._others.values()))

    @property
    def room(self) -> str:
        """A phrase on the memory for texts, and on what is reserved besides, for messages."""
        self.make()
        pages, gib = self.num_pages - 1, 2**30
        apart = f"{self.logits_bytes / gib:.2f} GiB for logits"
        if self.memory is None:
            apart = f"{1 - SHARE:.0%} of the free memory for passes, {apart} among it"
        else:
            apart += f", {SPARED:.0%} of the device for graphs"
        return (
            f"the pool has {pages:,} pages of {self.size} tokens, {pages * self.size:,} tokens in "
            f"{pages * self.page_bytes / gib:.2f} GiB; set aside: {apart}"
        )

    @property
    def num_unused(self) -> int:
        """The number of pages that nobody holds."""
        self.make()
        return len(self._unused)

    @property
    def num_expected(self) -> int:
        """The number of pages that nobody would hold if the pool was made now, for itself alone;
        it is not made."""
        with LOCK:
            if self.num_pages:
                return len(self._unused)
            return min(self._given or _most_pages_of([self]), self._useful) - 1

    @property
    def tensors(self) -> tuple[Any, ...]:
        """Keys and values (layers, pages, key heads, size, head size), cosines and sines."""
        self.make()
        return (*self._own.tensors, *self._angles)

    def start(self, memory: float | int | None = None) -> None:
        """Announce that rows will need the pool."""
        with LOCK:
            if not self.num_pages and self._given is None:
                self.memory = self.memory if memory is None else memory
                _STARTED.add(self)

    def part(self, owner: Any, sizes: Sequence[tuple[int, ...]]) -> Paged:
        """Further tensors with the same pages, which live as long as their owner."""
        with LOCK:
            if owner not in self._others:
                part = Paged(sizes, self._like)
                if self.num_pages:
                    part.make(self.num_pages)
                self._others[owner] = part
            return self._others[owner]

    def make(self) -> None:
        """Allocate the pages of this pool, and those of the other pools that were started on this
        device, unless this one has its pages already."""
        if not self.num_pages:  # looked at before the lock, which who captures must not wait for
            with LOCK:
                self._make_all()

    def _make_all(self) -> None:
        """Do what `make` does, unless another thread was quicker."""
        if self.num_pages:
            return
        if self._given is not None:
            self._make(self._given)
            return
        others = (pool for pool in _STARTED if pool.device == self.device and not pool.num_pages)
        pools = [self, *(pool for pool in others if pool is not self)]
        for is_again in (False, True):  # another process may have been quicker
            most = _most_pages_of(pools)
            try:
                self._make(most)
                break
            except DeviceMemoryError:
                if is_again:
                    raise
        for pool in pools:
            if pool is not self:
                with suppress(DeviceMemoryError):  # it is tried again when it is needed
                    pool._make(most)
            _STARTED.discard(pool)

    @property
    def _useful(self) -> int:
        """The number of pages that all rows of an engine can have."""
        return 1 + MOST_ROWS * self.longest // self.size

    def _make(self, num_pages: int) -> None:
        """Allocate this many pages, or as many as all rows of an engine can have."""
        num_pages = min(num_pages, self._useful)
        parts = [self._own, *self._others.values()]
        try:
            for part in parts:
                part.make(num_pages)
        except DeviceMemoryError:
            for part in parts:  # free what was made, so that fewer pages may fit
                part.tensors = []
            raise
        self.num_positions = min(self.longest, num_pages * self.size)
        self._angles = self._rotary(self.num_positions)
        self._unused = [Page(number) for number in reversed(range(1, num_pages))]
        self.num_pages = num_pages

    def rest(self, pages: DevicePages, row: int, rows: Any) -> None:
        """Record that a row of an engine rests: it may be released when a page is needed."""
        self._resting[pages, row] = ref(rows)

    def rests(self, pages: DevicePages, row: int) -> bool:
        """Whether a row is resting."""
        return (pages, row) in self._resting

    def wake(self, pages: DevicePages, row: int) -> None:
        """Record that a row no longer rests."""
        self._resting.pop((pages, row), None)

    def free(self, count: int) -> bool:
        """Release resting rows until this many pages are free; returns whether there are enough."""
        while self.num_unused < count and self._resting:
            key = next(iter(self._resting))
            kept = self._resting.pop(key, None)  # a collection of garbage may have been quicker
            if kept is not None and (rows := kept()) is not None:
                rows.release(key[1])
        return self.num_unused >= count

    def take(self) -> Page:
        """Take a page that nobody holds. Work queued by its last holder is finished first."""
        self.follow()
        return self._unused.pop()

    def follow(self) -> Any:
        """Make the current stream wait for the work of other streams on pages, and return it; None
        on a CPU."""
        if self.device.type != "cuda":
            return None
        stream = torch.cuda.current_stream(self.device)
        for other in self._streams:
            if other != stream:
                stream.wait_stream(other)
        if stream not in self._streams:
            self._streams.append(stream)
        return stream

    def is_elsewhere(self, stream: Any) -> bool:
        """Whether a stream is not the current one."""
        on_device = self.device.type == "cuda"
        return on_device and bool(torch.cuda.current_stream(self.device) != stream)

    def give_back(self, page: Page) -> None:
        """Take back a page."""
        self._unused.append(page)

    def copy(self, page: Page, to: Page) -> None:
        """Copy the content of a page to another one, in all tensors."""
        for part in (self._own, *self._others.values()):
            for tensor in part.tensors:
                tensor[:, to.number] = tensor[:, page.number]


class DevicePages(RowPages[Page]):
    """The pages of the rows of an engine.

    table: (rows, pages of the longest text), the numbers of the pages on the device; 0 where a row
    has no page.
    """

    def __init__(self, pool: Pool, num_rows: int) -> None:
        super().__init__(num_rows, pool.size)
        self.pool = pool
        self._num_noted = [0] * num_rows
        self._stream: Any = None  # that changed the table last

    @cached_property
    def table(self) -> Any:
        """The numbers of the pages of each row, on the device."""
        self.pool.make()
        size = self.num_rows, self.pool.num_positions // self.size
        with torch.inference_mode(False):
            return torch.zeros(size, dtype=torch.int32, device=self.pool.device)

    def has(self, row: int, begin: int, end: int) -> bool:
        """Whether a row, which does not rest, has pages of its own for these slots."""
        return not (self.pool.rests(self, row) or self.num_missing(row, begin, end))

    def reserve(self, row: int, begin: int, end: int) -> None:
        """Give a row pages of its own for slots `begin` to `end`, or raise and change nothing."""
        pool = self.pool
        if self.has(row, begin, end):
            return
        if end > pool.longest:
            cure = f"Keep texts within {pool.longest - SLACK} tokens."
            raise DeviceMemoryError(explain("No row has that many places.", end, cure))
        with LOCK:
            pool.wake(self, row)
            missing = self.num_missing(row, begin, end)
            if not pool.free(missing):
                received = f"{missing} pages more, of {pool.num_unused} free; {pool.room}"
                cure = "Send fewer or shorter texts, or give the model more memory."
                raise DeviceMemoryError(
                    explain(f"There is no room for a text of {end} tokens.", received, cure)
                )
            super().reserve(row, begin, end)

    def places(self, row: int, slots: Any) -> tuple[Any, Any]:
        """The numbers of the pages that hold slots (M,) of a row, and the places in these pages."""
        pages = [self._rows[row][slot // self.size].number for slot in slots.tolist()]
        device = self.pool.device
        return torch.tensor(pages, device=device), torch.from_numpy(slots % self.size).to(device)

    @property
    def num_rows(self) -> int:
        return len(self._rows)

    def rest(self, row: int, rows: Any) -> None:
        """Note that a row keeps its pages only until they are needed."""
        with LOCK:
            self.pool.rest(self, row, rows)

    def clear(self) -> None:
        """Give back all pages; the table is cleared when the rows are used again."""
        with LOCK:
            for row, pages in enumerate(self._rows):
                self.pool.wake(self, row)
                for page in pages:
                    self._drop(page)
                pages.clear()

    def restart(self) -> None:
        """Set the page numbers of all rows to 0, in the table on the device."""
        self.table.zero_()
        self._num_noted = [0] * len(self._rows)

    def share(self, pages: Sequence[Page], row: int) -> None:
        with LOCK:
            self.pool.wake(self, row)
            super().share(pages, row)

    def cut(self, row: int, length: int) -> None:
        with LOCK:
            self.pool.wake(self, row)
            super().cut(row, length)

    def _new_page(self) -> Page:
        page = self.pool.take()
        page.num_holders = 1
        return page

    def _copy(self, page: Page, to: Page) -> None:
        self.pool.copy(page, to)

    def _free(self, page: Page) -> None:
        self.pool.give_back(page)

    def _note(self, row: int, first: int) -> None:
        numbers = [page.number for page in self._rows[row][first:]]
        end = first + len(numbers)
        numbers += [0] * (self._num_noted[row] - end)
        self._num_noted[row] = end
        some = torch.tensor(numbers, dtype=torch.int32)
        if self.pool.is_elsewhere(self._stream):  # another engine lets go of a row that rests
            self._stream = self.pool.follow()
        self.table[row, first : first + len(numbers)].copy_(some, non_blocking=True)


def no_memory(num_pages: int, page_bytes: int, device: Any) -> DeviceMemoryError:
    """The error for a pool that does not fit into the device's memory."""
    wrong = f"Keys and values of {num_pages * shapes.CHUNK} tokens do not fit the device."
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 0
    received = f"{num_pages * page_bytes / 2**30:.1f} GiB, of {free / 2**30:.1f} GiB free"
    cure = "Free memory on the device, or let this process fill more of it (gpu_memory)."
    return DeviceMemoryError(explain(wrong, received, cure))


def _most_pages_of(pools: Sequence[Pool]) -> int:
    """How many pages each of these pools, on one device, can have."""
    said = [pool.memory for pool in pools if pool.memory is not None]
    page_bytes = sum(pool.page_bytes for pool in pools)
    apart = sum(pool.logits_bytes for pool in pools)
    return _most_pages(pools[0].device, page_bytes, said[0] if said else None, apart)


def _most_pages(device: Any, page_bytes: int, memory: float | int | None, apart: int) -> int:
    """How many pages of page_bytes, over all pools, the device has room for.

    apart: bytes that passes will need.
    """
    if device.type != "cuda":
        return ON_HOST
    gc.collect()
    with CAPTURES:  # torch frees nothing while anybody captures, and raises
        torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    room = room_for(memory, free, total, torch.cuda.memory_reserved(device), apart)
    if room < 2 * page_bytes:  # the first page belongs to nobody
        raise no_memory(2, page_bytes, device)
    return room // page_bytes


def room_for(memory: float | int | None, free: int, total: int, taken: int, apart: int = 0) -> int:
    """The bytes that keys and values may take.

    memory: how much this process may fill, as a share of all memory or in bytes; None: a share of
    what is free.
    taken: bytes that this process already uses. apart: bytes that it will need for other things.
    """
    if memory is None:
        return int(SHARE * free)
    most = int(memory * total) if isinstance(memory, float) else memory
    if most > total:
        wrong = "gpu_memory is more than the device has."
        received = f"{most / 2**30:.1f} GiB, where there are {total / 2**30:.1f} GiB"
        raise InputError(explain(wrong, received, "Use a share such as 0.9, or less GiB."))
    return max(0, min(most - taken, free - int(SPARED * total)) - apart)
