"""Reads GGUF files: the fields of the header, and the places of the tensors.

A vocabulary is hundreds of thousands of strings and numbers.  The gguf package makes an array of
each of them and takes half a minute; this reader takes a second.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Container
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize

from forerun.base.arrays import HostArray
from forerun.base.errors import InputError, UnsupportedError, explain
from forerun.gguf.magic import GGUF_MAGIC, begins_as_gguf, parts_beside

LFS_POINTER = b"version https://git-lfs"
VERSIONS = (2, 3)
ALIGNMENT = 32  # bytes, unless the file says otherwise
NUMBERS = {0: "u1", 1: "i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?", 10: "<u8",
           11: "<i8", 12: "<f8"}  # fmt: skip
STRING, ARRAY = 8, 9
MOST_AXES = 4
SMALLEST_FIELD, SMALLEST_TENSOR = 14, 25  # bytes in the header, for a name of one letter
NO_TOKEN = (None, -1, 0xFFFFFFFF)  # llama.cpp's -1, which some programs write without a sign
SPLIT = {"no": 0, "count": 1}
"""The fields that number the parts of a model, and their values in a model that is not split."""
LAYER = re.compile(r"blk\.(0|[1-9][0-9]*)\.(.+)")
"""The name of a tensor in a layer: the layer's number, and the rest."""
SERVED = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K",
          "Q5_K", "Q6_K")  # fmt: skip
"""The types of tensors that are served.  All convert to float32 exactly."""


class Tensor(NamedTuple):
    """A tensor in a file: its shape, its type, and the place of its data."""

    name: str
    shape: tuple[int, ...]  # the outermost axis first, as in NumPy and unlike GGUF
    kind: GGMLQuantizationType
    path: Path  # of the file, which may be one of several
    begin: int  # byte

    @property
    def type(self) -> str:
        """The name of its kind."""
        return str(self.kind.name)

    @property
    def num_bytes(self) -> int:
        """The size of the tensor in its quantised form."""
        block, size = GGML_QUANT_SIZES[self.kind]
        return int(math.prod(self.shape) // block * size)

    def values(self) -> HostArray:
        """The values as float32, in the shape of the tensor."""
        data = np.fromfile(self.path, np.uint8, self.num_bytes, offset=self.begin)
        if data.size < self.num_bytes:
            raise cut_off(self.path, self.begin + self.num_bytes)
        rows = data.reshape(*self.shape[:-1], -1)
        return np.asarray(dequantize(rows, self.kind), np.float32).reshape(self.shape)


class GgufFile(NamedTuple):
    """The header of a GGUF file: its fields and tensors by name."""

    path: Path  # the first file, if there are several
    fields: dict[str, Any]
    tensors: dict[str, Tensor]

    def numbers(self, name: str, count: int) -> list[Any]:
        """A field that must be a list of `count` numbers; InputError if it is not."""
        value = self._list(name)
        if len(value) != count:
            raise self.damaged(f"{len(value):,} numbers in {name} where {count:,} belong")
        numbers = np.asarray(value)
        if numbers.dtype.kind not in "biuf" or np.isnan(numbers).any():
            raise self.damaged(f"{name} with {numbers[:3].tolist()!r:.60}")
        found: list[Any] = numbers.tolist()
        return found

    def strings(self, name: str) -> list[str]:
        """A field that must be a list of strings; InputError if it is not."""
        value = self._list(name)
        if not all(isinstance(item, str) for item in value):
            raise self.damaged(f"{name} with {np.asarray(value[:3]).tolist()!r:.60}")
        return list(value)

    def token_id(self, role: str) -> int | None:
        """The token of a role such as "eos"; None if the file names none."""
        index, tokens = (
            self.fields.get(f"tokenizer.ggml.{name}") for name in (f"{role}_token_id", "tokens")
        )
        if index in NO_TOKEN:
            return None
        count = self.tensors["token_embd.weight"].shape[0] if tokens is None else len(tokens)
        if type(index) is int and 0 <= index < count:
            return index
        if role == "padding":  # some files name a token they do not have, but no text needs it
            return None
        raise self.damaged(f"{role}_token_id {index!r:.40} for {count:,} tokens")

    def _list(self, name: str) -> Any:
        value = self.fields.get(name)
        if not isinstance(value, list | np.ndarray):
            raise self.damaged(f"no list {name}")
        return value

    def damaged(self, received: str) -> InputError:
        """The error for a header that does not make sense."""
        return _damaged(self.path, received)


def read_gguf(path: Path) -> GgufFile:
    """Read the header of a file; tensors are read when they are used.

    A model in several files is read from all of them, whichever one is named.  Raises InputError
    for a damaged file or one of another kind, UnsupportedError for tensor types that are not
    served.
    """
    paths = parts_beside(path)
    files = [_read_one(part) for part in paths]
    tensors: dict[str, Tensor] = {}
    for number, file in enumerate(files):
        told = tuple(file.fields.get(f"split.{name}", usual) for name, usual in SPLIT.items())
        if told != (number, len(files)) and told != (0, 0):
            told_of = f"part {told[0]} of {told[1]}, counted from 0,"
            raise file.damaged(f"{told_of} in the place of {number} of {len(files)}")
        if twice := tensors.keys() & file.tensors.keys():
            raise file.damaged(f"{min(twice)!r:.80}, which an earlier part has")
        tensors |= file.tensors
    told = files[0].fields.get("split.tensors.count", len(tensors))
    if told != len(tensors):
        raise files[0].damaged(f"{len(tensors):,} tensors in all parts where {told!r:.40} belong")
    return GgufFile(paths[0], files[0].fields, tensors)


def _read_one(path: Path) -> GgufFile:
    if not begins_as_gguf(path):
        raise _not_gguf(path)
    reader = _Reader(path)
    version = reader.number("<u4")
    if version not in VERSIONS:
        wrong = f"Only GGUF files of version {VERSIONS[0]} and {VERSIONS[1]} are read."
        cure = "Convert the model anew with a present llama.cpp, for a little-endian machine."
        raise UnsupportedError(explain(wrong, f"version {version} in {str(path)!r}", cure))
    num_tensors, num_fields = reader.number("<u8"), reader.number("<u8")
    reader.need(reader.at + num_fields * SMALLEST_FIELD + num_tensors * SMALLEST_TENSOR)
    fields: dict[str, Any] = {}
    for _ in range(num_fields):
        name = reader.new_name(fields)
        fields[name] = reader.value(reader.number("<u4"))
    places: dict[str, _Place] = {}
    for _ in range(num_tensors):
        name = reader.new_name(places)
        places[name] = reader.place(name)
    file = GgufFile(path, fields, {})
    alignment = fields.get("general.alignment", ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1:
        raise file.damaged(f"general.alignment {alignment!r:.40}")
    begin = -(-reader.at // alignment) * alignment
    reader.need(max((begin + place.end for place in places.values()), default=0))
    _check_places(file, places, alignment)
    for name, place in places.items():
        file.tensors[name] = Tensor(name, place.shape, place.kind, path, begin + place.offset)
    return file


class _Place(NamedTuple):
    """The shape, type and place of a tensor; offsets are in bytes from the first tensor."""

    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    offset: int

    @property
    def end(self) -> int:
        block, size = GGML_QUANT_SIZES[self.kind]
        return self.offset + int(math.prod(self.shape) // block * size)


def _check_places(file: GgufFile, places: dict[str, _Place], alignment: int) -> None:
    """Raise InputError if tensors overlap: one of them would have the numbers of another."""
    for name, place in places.items():
        if place.offset % alignment:
            raise file.damaged(f"{name!r:.80} at {place.offset:,}, no multiple of {alignment}")
    in_order = sorted(places.items(), key=lambda item: (item[1].offset, item[1].end))
    for (name, place), (next_name, next_place) in pairwise(in_order):
        if place.end > next_place.offset:
            raise file.damaged(f"{next_name!r:.80} inside {name!r:.80}")


def _damaged(path: Path, received: str) -> InputError:
    wrong = "The header of the GGUF file is damaged or incomplete."
    cure = "Download the file again, or convert the model anew."
    return InputError(explain(wrong, f"{received} in {str(path)!r}", cure))


def cut_off(path: Path, needed: int) -> InputError:
    """The error for a file that is too short."""
    wrong = f"The GGUF file is cut off: it should have at least {needed:,} bytes."
    received = f"{path.stat().st_size:,} bytes in {str(path)!r}"
    return InputError(explain(wrong, received, "Download the file again."))


def _not_gguf(path: Path) -> InputError:
    """The error for a file of another kind, which names that kind if it is known."""
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
    """The type of a tensor; UnsupportedError if it is not served."""
    known = {kind.value: kind for kind in GGMLQuantizationType}
    kind = known[number].name if number in known else f"number {number}"
    if kind not in SERVED:
        wrong = f"Tensors of type {kind} are not served; {', '.join(SERVED)} are."
        cure = "Use a file of the same model in one of these, for example Q4_K_M or Q8_0."
        raise UnsupportedError(explain(wrong, f"{name!r} in {str(path)!r}", cure))
    return known[number]


class _Reader:
    """Reads a file from the beginning to the end; raises InputError where it ends too early."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._memory = np.memmap(path, np.uint8, "r")
        self._bytes: Any = self._memory.data
        self.at = len(GGUF_MAGIC)

    def bytes(self, count: int) -> HostArray:
        """The next `count` bytes."""
        begin, self.at = self.at, self.at + count
        self.need(self.at)
        return np.asarray(self._memory[begin : self.at])

    def number(self, kind: str) -> Any:
        """The next number, of a NumPy dtype."""
        return self.bytes(np.dtype(kind).itemsize).view(kind)[0].item()

    def string(self) -> str:
        """The next string."""
        return self.strings(1)[0]

    def strings(self, count: int) -> list[str]:
        """The next `count` strings."""
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
        """The next field, of type `kind`; arrays of numbers stay in the file until they are
        used."""
        if kind == STRING:
            return self.string()
        if kind != ARRAY:
            return self.number(self._number_kind(kind))
        kind, count = self.number("<u4"), self.number("<u8")
        if kind == STRING:
            self.need(self.at + 8 * count)
            return self.strings(count)
        numbers = np.dtype(self._number_kind(kind))
        return self.bytes(count * numbers.itemsize).view(numbers)

    def new_name(self, known: Container[str]) -> str:
        """The next string, which must be a name that is not in `known` yet."""
        name = self.string()
        if not name or name in known:
            raise _damaged(self._path, f"the name {name!r:.80} {'twice' if name else ''}".strip())
        return name

    def place(self, name: str) -> _Place:
        """The rest of a tensor's entry, after its name."""
        num_axes = self.number("<u4")
        if num_axes > MOST_AXES:
            raise _damaged(self._path, f"{num_axes:,} axes of {name!r:.80}")
        sizes = [self.number("<u8") for _ in range(num_axes)]
        kind = _kind(name, self.number("<u4"), self._path)
        return _Place(tuple(reversed(sizes)), kind, self.number("<u8"))

    def _number_kind(self, kind: int) -> str:
        if kind not in NUMBERS:
            wrong = "The header of the GGUF file is damaged: it has a field of an unknown type."
            received = f"type {kind} at byte {self.at} of {str(self._path)!r}"
            raise InputError(explain(wrong, received, "Download the file again."))
        return NUMBERS[kind]

    def need(self, count: int) -> None:
        """Raise InputError if the file has fewer than `count` bytes."""
        if count > len(self._memory):
            raise cut_off(self._path, count)
