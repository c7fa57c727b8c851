"""A model as the lean pass runs it: enough to answer without torch or the transformers model."""

from __future__ import annotations

import mmap
import os
import sys
import weakref
from collections.abc import Iterator, Sequence
from contextlib import suppress
from hashlib import blake2b
from io import FileIO
from threading import Lock
from typing import NamedTuple

import numpy as np

from forerun.base.errors import InputError, explain
from forerun.lean.blocks import Raw, are_finite, widened
from forerun.lean.formats import Format
from forerun.lean.forward import Weights
from forerun.lean.linear import Bytes, Floats, Matrices
from forerun.lean.plan import Ints
from forerun.lean.shape import LANES

MOST_ROWS = 4096  # of a table that are read at a time


class Rotary(NamedTuple):
    """Rotary tables: angles that grow with the position, by which queries and keys are turned."""

    frequencies: Floats  # (tables, head size / 2)
    factors: Floats  # (tables,)

    def angles(self, begin: int, end: int) -> tuple[Floats, Floats]:
        """Cosines and sines of positions `begin` to `end`, times the factors: two arrays (tables,
        end - begin, head size / 2), rounded to float32 once."""
        positions = np.arange(begin, end, dtype=np.float32)
        turns = (positions[:, None] * self.frequencies[:, None]).astype(np.float64)
        factors = self.factors[:, None, None]
        cos, sin = np.cos(turns) * factors, np.sin(turns) * factors
        return cos.astype(np.float32), sin.astype(np.float32)


WORDS = {
    Format.FLOAT32: "float32",
    Format.BFLOAT16: "bfloat16",
    Format.FLOAT16: "float16",
    Format.BLOCK8: "8-bit",
    Format.BLOCK6K: "6-bit",
    Format.BLOCK5K: "5-bit",
    Format.BLOCK5: "5-bit",
    Format.BLOCK4: "4-bit",
    Format.BLOCK4K: "4-bit",
}


class Facts(NamedTuple):
    """The properties of a model that can be read without loading it."""

    kind: str  # the name of its architecture in transformers
    num_parameters: int
    vocab_size: int
    max_context: int
    hidden_size: int
    num_layers: int
    endings: list[int]  # tokens with which it ends a text
    defaults: dict[str, float]  # its own sampling options
    is_rounded: bool  # the weights were rounded to 8 bits


class Rows:
    """The rows of a table that lies in a file, which are read when they are needed.

    The file is kept open, so it may be renamed or removed; a change of its bytes is noticed.
    """

    def __init__(self, raw: Raw) -> None:
        self.shape = raw.shape
        self._raw = raw
        self._stream = FileIO(raw.file)
        weakref.finalize(self, self._stream.close)
        self._stamp = self._now()
        self._lock = Lock()

    def values(self, rows: Ints) -> Floats:
        """Some of the rows, which ascend, as float32."""
        neighbours = np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1)
        ranges = [range(int(some[0]), int(some[-1]) + 1) for some in neighbours]
        return widened(self._read(ranges), self._raw.type)

    def are_finite(self) -> bool:
        """Whether all numbers of the table are finite."""
        return all(are_finite(self._read([part]), self._raw.type) for part in parts(self.shape[0]))

    def digest(self) -> str:
        """A digest of the table."""
        digest = blake2b(f"{self._raw.type} {self.shape}".encode(), digest_size=16)
        for part in parts(self.shape[0]):
            digest.update(self._read([part]).data)
        return digest.hexdigest()

    def _read(self, ranges: Sequence[range]) -> Bytes:
        """The bytes of some rows; InputError if the file was written to since it was opened."""
        read = self._raw.read_from
        with self._lock:
            found = [read(self._stream, some.start, some.stop) for some in ranges]
        if self._now() != self._stamp:
            wrong = "The model's file was changed while the model is in use."
            raise InputError(explain(wrong, repr(self._raw.file), "Load the model again."))
        return np.concatenate(found)

    def _now(self) -> tuple[int, int]:
        """The size of the file and when it was written to."""
        seen = os.fstat(self._stream.fileno())
        return seen.st_size, seen.st_mtime_ns


def parts(num_rows: int) -> Iterator[range]:
    """The rows of a table, some at a time."""
    for begin in range(0, num_rows, MOST_ROWS):
        yield range(begin, min(begin + MOST_ROWS, num_rows))


class Packed(NamedTuple):
    """Everything that the lean pass needs of a model."""

    weights: Weights
    rotary: Rotary
    facts: Facts
    rows: Rows | None = None  # the embedding, where `weights` has none


class Embedding:
    """A table (V, D) of float32 whose rows are written when they are first needed.

    A large one has a gigabyte, of which a text needs little, and memory that was never written to
    takes none.
    """

    def __init__(self, rows: Rows) -> None:
        self.table = _untouched(rows.shape)
        self._rows = rows
        self._is_there = np.zeros(len(self.table), np.bool_)

    def need(self, tokens: Ints) -> None:
        """Write the rows of these tokens, if they are not there yet."""
        if not self._is_there[tokens].all():
            missing = np.unique(tokens[~self._is_there[tokens]])
            self.table[missing] = self._rows.values(missing)
            self._is_there[missing] = True

    def whole(self) -> Floats:
        """The table with all rows."""
        for part in parts(len(self.table)):
            self.need(np.array(part))
        return self.table


def _untouched(shape: tuple[int, int]) -> Floats:
    """Memory for a table, in pages of the usual size. NumPy asks for pages of 2 MB, of which each
    row that is written would take one."""
    if sys.platform != "linux":
        return np.empty(shape, np.float32)
    memory = mmap.mmap(-1, 4 * shape[0] * shape[1], mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # of a system without large pages
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, np.float32).reshape(shape)


def storage_name(m: Matrices) -> str:
    """The format of most of the weights, in words."""
    panels = np.diff(m.output_at // LANES, append=len(m.format))  # of each matrix
    counts = np.bincount(m.format, weights=np.repeat(m.depth, panels))
    return WORDS[Format(int(counts.argmax()))]
