"""A model as the lean pass runs it: enough to answer without torch or the transformers model."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from forerun.lean.blocks import are_finite, widened
from forerun.lean.formats import Format
from forerun.lean.forward import Weights
from forerun.lean.linear import Bytes, Floats, Matrices
from forerun.lean.plan import Ints
from forerun.lean.shape import LANES

MOST_ROWS = 4096  # of a table that are widened at a time


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


class Rows(NamedTuple):
    """Rows of a table as they lie in a file."""

    type: str
    data: Bytes  # (rows, bytes of a row)

    def values(self, rows: Ints | slice) -> Floats:
        """Some of the rows as float32."""
        return widened(self.data[rows], self.type)

    def are_finite(self) -> bool:
        """Whether all numbers of the table are finite."""
        return are_finite(self.data, self.type)


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
        self.table = np.empty((len(rows.data), rows.values(slice(1)).shape[1]), np.float32)
        self._rows = rows
        self._is_there = np.zeros(len(rows.data), np.bool_)

    def need(self, tokens: Ints) -> None:
        """Write the rows of these tokens, if they are not there yet."""
        if not self._is_there[tokens].all():
            missing = np.unique(tokens[~self._is_there[tokens]])
            self.table[missing] = self._rows.values(missing)
            self._is_there[missing] = True

    def whole(self) -> Floats:
        """The table with all rows."""
        for begin in range(0, len(self.table), MOST_ROWS):
            self.need(np.arange(begin, min(begin + MOST_ROWS, len(self.table))))
        return self.table


def storage_name(m: Matrices) -> str:
    """The format of most of the weights, in words."""
    panels = np.diff(m.output_at // LANES, append=len(m.format))  # of each matrix
    counts = np.bincount(m.format, weights=np.repeat(m.depth, panels))
    return WORDS[Format(int(counts.argmax()))]
