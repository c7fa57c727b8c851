"""Arrays and plain values of nested named tuples, in one file that loads in a moment.

The file is a line of JSON, then the arrays, each from a page boundary on.  It is written under
another name and renamed, so it is complete or absent.  Checksums find later damage: one wrong bit
in a weight would be another model, and one in a table would be read as an address.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar, get_type_hints
from zlib import crc32

import numpy as np

MAGIC = b"forerun kept file 2\n"
PAGE = 4096  # bytes
STRETCH = 64 * 1024  # bytes whose sum is one input of the CRC
UNFINISHED = ".unfinished"
MODE = 0o644  # as far as the umask allows: others may read a kept file and never write it

Tree = TypeVar("Tree")


def write(file: Path, tree: Any) -> None:
    """Write a named tuple whose fields are arrays, plain JSON values, or named tuples again.

    Raises OSError if the file cannot be written; then nothing is left behind.
    """
    named = dict(leaves(tree))
    values = {name: leaf for name, leaf in named.items() if not _is_array(leaf)}
    arrays = {name: np.ascontiguousarray(leaf) for name, leaf in named.items() if _is_array(leaf)}
    table, end = {}, 0
    for name, array in arrays.items():
        table[name] = (array.dtype.str, named[name].shape, end, checksum(array))
        end += -(-array.nbytes // PAGE) * PAGE
    about = json.dumps({"values": values, "arrays": table, "bytes": end}).encode()
    head = MAGIC + b"%08x %b\n" % (crc32(about), about)
    unfinished = file.with_name(f"{os.getpid()}-{time.monotonic_ns()}{UNFINISHED}")
    number = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, MODE)
    try:
        with open(number, "wb") as stream:
            stream.write(_filled(head))
            for array in arrays.values():
                stream.write(array.data)
                stream.write(bytes(-array.nbytes % PAGE))
            stream.flush()
            os.fsync(number)
        os.replace(unfinished, file)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def read(file: Path, kind: type[Tree]) -> Tree:
    """Read a named tuple of the class `kind`.

    Raises OSError, ValueError or LookupError if the file is missing, damaged or different.
    """
    with file.open("rb") as stream:
        if stream.readline() != MAGIC:
            raise ValueError(f"{file} is no kept file")
        found, _, about = stream.readline().rstrip(b"\n").partition(b" ")
        if found != b"%08x" % crc32(about):
            raise ValueError(f"{file} is damaged")
        head = json.loads(about)
        begin = -(-stream.tell() // PAGE) * PAGE
        if os.fstat(stream.fileno()).st_size != begin + head["bytes"]:
            raise ValueError(f"{file} is cut short")
        named = dict(head["values"])
        for name, (dtype, shape, offset, total) in head["arrays"].items():
            array = np.empty(shape, dtype)
            stream.seek(begin + offset)
            stream.readinto(array.reshape(-1).view(np.uint8).data)
            if checksum(array) != total:
                raise ValueError(f"{file} is damaged: {name}")
            named[name] = array if shape else array[()]
    tree: Tree = _tree(kind, named, "")
    return tree


def checksum(array: Any) -> int:
    """A checksum at the speed at which memory is read: the CRC of the sums of stretches."""
    data = array.reshape(-1).view(np.uint8)
    whole = data.size - data.size % STRETCH
    sums = data[:whole].view(np.uint64).reshape(-1, STRETCH // 8).sum(1)
    return crc32(data[whole:].tobytes(), crc32(sums.tobytes()))


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, np.ndarray | np.generic)


def _filled(head: bytes) -> bytes:
    """Pad a header with zeros to a whole number of pages."""
    return head + bytes(-len(head) % PAGE)


def leaves(tree: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Every array and value of nested named tuples with its path, such as `weights.embedding`."""
    if not hasattr(tree, "_fields"):
        yield name, tree
        return
    for field in tree._fields:
        yield from leaves(getattr(tree, field), f"{name}.{field}".lstrip("."))


def _tree(kind: Any, named: dict[str, Any], name: str) -> Any:
    """The inverse of `leaves`: a named tuple of the class `kind` from its leaves by path."""
    if not hasattr(kind, "_fields"):
        return named[name]
    hints = get_type_hints(kind)
    parts = [_tree(hints[field], named, f"{name}.{field}".lstrip(".")) for field in kind._fields]
    return kind(*parts)
