"""Reads GGUF files: the fields of the header, and where the tensors lie.

A vocabulary is hundreds of thousands of strings and numbers.  The gguf package makes arrays of
every one of them and takes half a minute; this takes a second.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize

from forerun.arrays import HostArray
from forerun.errors import InputError, UnsupportedError, explain

MAGIC = b"GGUF"
VERSIONS = (2, 3)
ALIGNMENT = 32  # bytes, unless the file says otherwise
NUMBERS = {0: "u1", 1: "i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?", 10: "<u8",
           11: "<i8", 12: "<f8"}  # fmt: skip
STRING, ARRAY = 8, 9
SERVED = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K",
          "Q5_K", "Q6_K")  # fmt: skip
"""Types of tensors, all of which become float32 exactly."""


class Tensor(NamedTuple):
    """A tensor as it lies in the file."""

    name: str
    shape: tuple[int, ...]  # outermost first, as everybody but GGUF writes it
    kind: GGMLQuantizationType
    data: HostArray  # (bytes,)

    def values(self) -> HostArray:
        """The numbers as float32, of this tensor's shape."""
        rows = self.data.reshape(*self.shape[:-1], -1)
        return np.asarray(dequantize(rows, self.kind), np.float32).reshape(self.shape)


class GgufFile(NamedTuple):
    """Fields by name, and tensors by name."""

    path: Path
    fields: dict[str, Any]
    tensors: dict[str, Tensor]


def is_gguf(path: Path) -> bool:
    """Whether a file begins as GGUF files do."""
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def read_gguf(path: Path) -> GgufFile:
    """The header of a file; the tensors are read when they are asked for."""
    if not is_gguf(path):
        wrong = "This is no GGUF file: it does not begin with the letters GGUF."
        raise InputError(explain(wrong, repr(str(path)), "Check that it was downloaded whole."))
    reader = _Reader(path)
    version = reader.number("<u4")
    if version not in VERSIONS:
        wrong = f"Only GGUF files of version {VERSIONS[0]} and {VERSIONS[1]} are read."
        cure = "Convert the model anew with a present llama.cpp, for a little-endian machine."
        raise UnsupportedError(explain(wrong, f"version {version} in {str(path)!r}", cure))
    num_tensors, num_fields = reader.number("<u8"), reader.number("<u8")
    fields = {}
    for _ in range(num_fields):
        name = reader.string()
        fields[name] = reader.value(reader.number("<u4"))
    places = [reader.place() for _ in range(num_tensors)]
    alignment = fields.get("general.alignment", ALIGNMENT)
    begin = -(-reader.at // alignment) * alignment
    tensors = {}
    for name, shape, number, offset in places:
        kind = _kind(name, number, path)
        block, size = GGML_QUANT_SIZES[kind]
        reader.at = begin + offset
        tensors[name] = Tensor(name, shape, kind, reader.bytes(math.prod(shape) // block * size))
    return GgufFile(path, fields, tensors)


def _kind(name: str, number: int, path: Path) -> GGMLQuantizationType:
    """The type of a tensor, if it is served."""
    known = {kind.value: kind for kind in GGMLQuantizationType}
    kind = known[number].name if number in known else f"number {number}"
    if kind not in SERVED:
        wrong = f"Tensors of type {kind} are not served; {', '.join(SERVED)} are."
        cure = "Use a file of the same model in one of these, for example Q4_K_M or Q8_0."
        raise UnsupportedError(explain(wrong, f"{name!r} in {str(path)!r}", cure))
    return known[number]


class _Reader:
    """Goes through the bytes of a file in order, and says so where they end too early."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._memory = np.memmap(path, np.uint8, "r")
        self._bytes: Any = self._memory.data
        self.at = len(MAGIC)

    def bytes(self, count: int) -> HostArray:
        begin, self.at = self.at, self.at + count
        self._check()
        return np.asarray(self._memory[begin : self.at])

    def number(self, kind: str) -> Any:
        return self.bytes(np.dtype(kind).itemsize).view(kind)[0].item()

    def string(self) -> str:
        return self.strings(1)[0]

    def strings(self, count: int) -> list[str]:
        found, at, memory = [], self.at, self._bytes
        unpack, most = struct.Struct("<Q").unpack_from, len(memory)
        for _ in range(count):
            begin = at + 8
            at = begin + unpack(memory, at)[0] if begin <= most else begin
            if at > most:
                break
            found.append(str(memory[begin:at], "utf-8", "replace"))
        self.at = at
        self._check()
        return found

    def value(self, kind: int) -> Any:
        """A field of any type; arrays as lists."""
        if kind == STRING:
            return self.string()
        if kind != ARRAY:
            return self.number(self._number_kind(kind))
        kind, count = self.number("<u4"), self.number("<u8")
        if kind == STRING:
            return self.strings(count)
        numbers = np.dtype(self._number_kind(kind))
        return self.bytes(count * numbers.itemsize).view(numbers).tolist()

    def place(self) -> tuple[str, tuple[int, ...], int, int]:
        """Name, shape, type and offset of a tensor."""
        name, num_axes = self.string(), self.number("<u4")
        sizes = [self.number("<u8") for _ in range(num_axes)]
        return name, tuple(reversed(sizes)), self.number("<u4"), self.number("<u8")

    def _number_kind(self, kind: int) -> str:
        if kind not in NUMBERS:
            wrong = "The header of the GGUF file is damaged: it has a field of an unknown type."
            received = f"type {kind} at byte {self.at} of {str(self._path)!r}"
            raise InputError(explain(wrong, received, "Download the file again."))
        return NUMBERS[kind]

    def _check(self) -> None:
        if self.at > len(self._memory):
            wrong = f"The GGUF file is cut off: it should have at least {self.at:,} bytes."
            received = f"{len(self._memory):,} bytes in {str(self._path)!r}"
            raise InputError(explain(wrong, received, "Download the file again."))
