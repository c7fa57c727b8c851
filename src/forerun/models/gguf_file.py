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
from forerun.models.folders import GGUF_MAGIC, begins_as_gguf

LFS_POINTER = b"version https://git-lfs"
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

    def numbers(self, name: str, count: int) -> list[Any]:
        """A field that must be a list of so many numbers."""
        return self._list(name, count, (int, float))

    def strings(self, name: str) -> list[str]:
        """A field that must be a list of strings."""
        return self._list(name, None, (str,))

    def _list(self, name: str, count: int | None, kinds: tuple[type, ...]) -> list[Any]:
        value = self.fields.get(name)
        if not isinstance(value, list):
            raise self.damaged(f"no list {name}")
        if count is not None and len(value) != count:
            raise self.damaged(f"{len(value):,} numbers in {name} where {count:,} belong")
        if not all(isinstance(item, kinds) for item in value):
            raise self.damaged(f"{name} with {value[:3]!r:.60}")
        return value

    def damaged(self, received: str) -> InputError:
        """The error for a header that does not make sense."""
        wrong = "The header of the GGUF file is damaged or incomplete."
        cure = "Download the file again, or convert the model anew."
        return InputError(explain(wrong, f"{received} in {str(self.path)!r}", cure))


def read_gguf(path: Path) -> GgufFile:
    """The header of a file; the tensors are read when they are asked for."""
    if not begins_as_gguf(path):
        raise _not_gguf(path)
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
    file = GgufFile(path, fields, {})
    alignment = fields.get("general.alignment", ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1:
        raise file.damaged(f"general.alignment {alignment!r:.40}")
    begin = -(-reader.at // alignment) * alignment
    found = [
        (name, shape, _kind(name, number, path), begin + offset)
        for name, shape, number, offset in places
    ]
    reader.need(max((at + _num_bytes(shape, kind) for _, shape, kind, at in found), default=0))
    for name, shape, kind, at in found:
        reader.at = at
        file.tensors[name] = Tensor(name, shape, kind, reader.bytes(_num_bytes(shape, kind)))
    return file


def _num_bytes(shape: tuple[int, ...], kind: GGMLQuantizationType) -> int:
    """Of a tensor in the file."""
    block, size = GGML_QUANT_SIZES[kind]
    return int(math.prod(shape) // block * size)


def _not_gguf(path: Path) -> InputError:
    """The error for a file of another kind, with what it is if that is known."""
    with path.open("rb") as file:
        beginning = file.read(len(LFS_POINTER))
    received = f"{str(path)!r}, {path.stat().st_size:,} bytes"
    cure = "Check that it was downloaded whole."
    if not beginning:
        wrong = "This is no GGUF file: it is empty."
    elif beginning == LFS_POINTER:
        wrong = "This is no GGUF file but Git's pointer to one."
        cure = "Fetch the file itself: git lfs pull."
    else:
        wrong = "This is no GGUF file: it does not begin with the letters GGUF."
        received += f" that begin with {beginning[:8]!r}"
    return InputError(explain(wrong, received, cure))


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
        self.at = len(GGUF_MAGIC)

    def bytes(self, count: int) -> HostArray:
        begin, self.at = self.at, self.at + count
        self.need(self.at)
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
        self.need(at)
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

    def need(self, count: int) -> None:
        """Refuse a file of fewer bytes."""
        if count > len(self._memory):
            wrong = f"The GGUF file is cut off: it should have at least {count:,} bytes."
            received = f"{len(self._memory):,} bytes in {str(self._path)!r}"
            raise InputError(explain(wrong, received, "Download the file again."))
