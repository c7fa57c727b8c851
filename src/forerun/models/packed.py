"""Weights that stay in the few bits in which a checkpoint stores them.

A weight is a *number* of 8 bits or fewer times a *scale* that it shares with other weights. The
product is computed in float32 and rounded once to the precision of the model, so it is exactly the
checkpoint's weight written out.

Numbers lie in words of 16 bits.  A word holds those of inputs that are `part` inputs apart, so that
one number of each word, taken together, are `part` inputs in their natural order.  Numbers of 6
bits have their low 4 in two words and their high 2 in a third, of 8 parts together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

TABLES = ("words", "scales", "zeros", "offsets", "whole_scales", "whole_offsets")
PARTS = (128, 64, 32, 16)
"""The possible distances, in inputs, between neighbouring numbers of one word."""
MOST_AT_ONCE = 2**24
"""The number of weights that are written out at once: each takes 12 bytes meanwhile."""


class Number(NamedTuple):
    """A kind of number, and how it is stored."""

    bits: int
    parts: int  # parts of a row whose numbers share words
    lift: float = 1.0  # the factor that a kernel's reading of the bits leaves out
    middle: int = 0  # the number that stands for zero, where no table has it

    @property
    def words(self) -> int:
        """The number of words that hold one number of each part."""
        return self.parts * self.bits // 16


NUMBERS = {
    "e4m3": Number(8, 2, lift=2.0**120),
    "int8": Number(8, 2, middle=128),
    "int6": Number(6, 8, middle=32),
    "int4": Number(4, 4, middle=8),
    "e2m1": Number(4, 4, lift=2.0**126),
}
"""The supported kinds of numbers. Integers are stored from 0 on, and a kind's `middle` is
subtracted from them."""


@dataclass
class Packed:
    """A matrix (N, K) of numbers with their scales, on one device."""

    words: Any  # (N, K * bits / 16), int16
    scales: Any  # (N / rows, K / group)
    number: str
    part: int
    dtype: Any  # of the weights
    zeros: Any = None  # (N, K / group), uint8: the numbers that stand for zero
    offsets: Any = None  # (N, K / group): what is added to number times scale
    whole_scales: Any = None  # (N, K / whole): of several groups; scales are multiples of these
    whole_offsets: Any = None  # (N, K / whole): likewise, and the product is subtracted

    @property
    def shape(self) -> tuple[int, int]:
        """The shape (N, K)."""
        return len(self.words), self.words.shape[1] * 16 // NUMBERS[self.number].bits

    @property
    def group(self) -> int:
        """The number of inputs that share a scale."""
        return int(self.shape[1] // self.scales.shape[1])

    @property
    def rows(self) -> int:
        """The number of rows that share a scale."""
        return int(self.shape[0] // self.scales.shape[0])

    @property
    def device(self) -> Any:
        return self.words.device

    @property
    def tables(self) -> tuple[Any, ...]:
        """The tensors that the matrix consists of."""
        found = (getattr(self, name) for name in TABLES)
        return tuple(table for table in found if table is not None)

    @property
    def num_bytes(self) -> int:
        """The bytes of the numbers and tables."""
        return sum(table.numel() * table.element_size() for table in self.tables)

    def to(self, device: Any) -> Packed:
        """The matrix on another device."""
        moved = replace(self)
        for name in TABLES:
            table = getattr(self, name)
            setattr(moved, name, None if table is None else table.to(device))
        return moved

    def written_out(self) -> Any:
        """The weights (N, K) as floats."""
        num_rows, depth = self.shape
        step = self.rows * max(1, MOST_AT_ONCE // (depth * self.rows))
        if num_rows <= step:
            return self._written_out()
        made = torch.empty(self.shape, dtype=self.dtype, device=self.device)
        for begin in range(0, num_rows, step):
            made[begin : begin + step] = self._part(begin, begin + step)._written_out()
        return made

    def _part(self, begin: int, end: int) -> Packed:
        """Some rows as a matrix of their own; rows that share a scale must not be parted."""
        tables = {name: getattr(self, name) for name in TABLES}
        num_rows = len(self.words)
        return replace(self, **{
            name: table[begin * len(table) // num_rows : end * len(table) // num_rows]
            for name, table in tables.items() if table is not None
        })  # fmt: skip

    def _written_out(self) -> Any:
        values = numbers_of(self.words, self.number, self.part)
        if self.zeros is not None:
            values -= self._spread(self.zeros)
        elif self.offsets is None:
            values -= NUMBERS[self.number].middle
        scales, offsets = self._spread(self.scales), self.offsets
        values *= scales if self.whole_scales is None else self._spread(self.whole_scales) * scales
        if self.whole_offsets is not None:
            values -= self._spread(self.whole_offsets) * self._spread(offsets)
        elif offsets is not None:
            values += self._spread(offsets)
        return values.to(self.dtype)

    def _spread(self, table: Any) -> Any:
        """Expand a table to one entry per weight, (N, K)."""
        wide = table.float().repeat_interleave(self.shape[1] // table.shape[1], 1)
        return wide if len(wide) == self.shape[0] else wide.repeat_interleave(self.rows, 0)

    def is_alike(self, other: Packed) -> bool:
        """Whether this matrix and another one could be joined into one, one below the other."""

        def kind(one: Packed) -> tuple[Any, ...]:
            tables = (getattr(one, name) for name in TABLES)
            kinds = (None if table is None else table.dtype for table in tables)
            return one.number, one.part, one.dtype, one.group, *kinds

        return kind(self) == kind(other)


class PackedLinear(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    """A linear layer whose weights stay packed; they are written out whenever it is called."""

    def __init__(self, matrix: Packed, bias: Any = None) -> None:
        super().__init__()
        self.matrix = matrix
        self.bias = bias
        self.out_features, self.in_features = matrix.shape

    @property
    def weight(self) -> Any:
        """The weights (out, in), written out for code that reads them."""
        return self.matrix.written_out()

    def forward(self, x: Any) -> Any:
        return torch.nn.functional.linear(x, self.weight, self.bias)


class PackedStack:
    """Matrices of one shape, stored as one packed matrix, one below another; each is written out
    whenever it is read."""

    def __init__(self, matrix: Packed, count: int, is_turned: bool = False) -> None:
        """matrix: (count * N, K). is_turned: whether each matrix is returned as (K, N) instead of
        (N, K)."""
        self.matrix, self.count, self.is_turned = matrix, count, is_turned

    def __getitem__(self, index: Any) -> Any:
        tables = {name: getattr(self.matrix, name) for name in TABLES}
        own = {
            name: table.view(self.count, -1, table.shape[1])[int(index)]
            for name, table in tables.items()
            if table is not None
        }
        weights = replace(self.matrix, **own).written_out()
        return weights.T if self.is_turned else weights


def packed_parts(model: Any) -> Iterator[Packed]:
    """The packed matrices of a model."""
    for module in model.modules():
        for value in vars(module).values():
            if isinstance(value, PackedStack):
                yield value.matrix
            elif isinstance(value, Packed):
                yield value


def bytes_of(matrix: Any) -> int:
    """The size of a matrix, packed or not."""
    if isinstance(matrix, Packed):
        return matrix.num_bytes
    return int(matrix.numel() * matrix.element_size())


def packed(numbers: Any, scales: Any, number: str, dtype: Any, **tables: Any) -> Packed:
    """Pack a matrix of numbers (N, K), given one per byte, together with its scales and other
    tables."""
    part = part_of(numbers.shape[1], numbers.shape[1] // scales.shape[1], number)
    return Packed(words_of(numbers, number, part), scales, number, part, dtype, **tables)


def part_of(depth: int, group: int, number: str) -> int:
    """The largest part that divides a row and has one scale; 0 if there is none."""
    parts = NUMBERS[number].parts
    return next((part for part in PARTS if depth % (part * parts) == 0 == group % part), 0)


def words_of(numbers: Any, number: str, part: int) -> Any:
    """Pack numbers (N, K), given one per byte, into words (N, K * bits / 16)."""
    num_rows, depth = numbers.shape
    bits, parts = NUMBERS[number].bits, NUMBERS[number].parts
    each = numbers.view(num_rows, depth // (parts * part), parts, part).to(torch.int32)
    if number == "e4m3":  # both where a 16-bit number has sign, exponent and mantissa, or nearly so
        low, high = each[:, :, 0], each[:, :, 1]
        words = (low & 0x80) << 8 | (low & 0x7F) << 4
        words |= (high & 0x80) << 4 | (high & 0x70) << 8 | high & 0x0F
    elif number == "int6":
        four, two = each & 0xF, each >> 4
        words = torch.stack([_joined(four[:, :, :4], 4), _joined(four[:, :, 4:], 4),
                             _joined(two, 2)], 2)  # fmt: skip
    else:
        words = _joined(each, bits)
    return words.to(torch.int16).reshape(num_rows, depth * bits // 16)


def _joined(each: Any, bits: int) -> Any:
    """Numbers (·, ·, parts, part) packed into words (·, ·, part), the first in the lowest bits."""
    return sum(each[:, :, i] << bits * i for i in range(each.shape[2]))


def _apart(words: Any, bits: int) -> Any:
    """The numbers in words (·, ·, 1, part): the inverse of `_joined`."""
    shifts = torch.arange(0, 16, bits, device=words.device)[:, None]
    return words >> shifts & (1 << bits) - 1


def numbers_of(words: Any, number: str, part: int) -> Any:
    """The numbers of packed words as float32 (N, K): the inverse of `words_of`."""
    num_rows, about = len(words), NUMBERS[number]
    wide = words.view(num_rows, -1, about.words, part).to(torch.int32) & 0xFFFF
    if number == "e4m3":
        low = (wide >> 8) & 0x80 | (wide >> 4) & 0x7F
        high = (wide >> 4) & 0x80 | (wide >> 8) & 0x70 | wide & 0x0F
        each = torch.cat([low, high], 2).to(torch.uint8).view(torch.float8_e4m3fn).float()
    elif number == "int6":
        low, more, high = wide.split(1, 2)
        each = torch.cat([_apart(low, 4), _apart(more, 4)], 2) | _apart(high, 2) << 4
    else:
        each = _apart(wide, about.bits)
        each = _E2M1.to(words.device)[each.long()] if number == "e2m1" else each
    return each.reshape(num_rows, -1).float()


_E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def stacked(parts: Sequence[Packed]) -> Packed:
    """Matrices with the same inputs joined into one; they become views of it."""
    if len(parts) == 1:
        return parts[0]
    if len({part.rows for part in parts}) > 1:
        for part in parts:
            part.scales = part.scales.repeat_interleave(part.rows, 0)
    first, tables = parts[0], {}
    for name in TABLES:
        found = [getattr(part, name) for part in parts]
        whole = None if found[0] is None else _whole(found)
        views = found if whole is None else whole.split([len(table) for table in found])
        for part, view in zip(parts, views, strict=True):
            setattr(part, name, view)
        tables[name] = whole
    return Packed(number=first.number, part=first.part, dtype=first.dtype, **tables)


def _whole(tables: Sequence[Any]) -> Any:
    """Tables joined one below the other; no copy is made if they already lie so in memory."""
    first, total = tables[0], sum(map(len, tables))
    ends = [table.data_ptr() + table.numel() * table.element_size() for table in tables]
    is_one = len({table.untyped_storage().data_ptr() for table in tables}) == 1
    if is_one and [table.data_ptr() for table in tables[1:]] == ends[:-1]:
        return first.as_strided((total, first.shape[1]), first.stride())
    return torch.cat(list(tables))
