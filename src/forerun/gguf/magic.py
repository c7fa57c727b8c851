"""Tells GGUF files from others, and finds the parts of one, without the gguf package."""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from forerun.base.errors import InputError, explain, meant

GGUF_MAGIC = b"GGUF"  # the first bytes of such a file
SAMPLE = 1 << 20  # bytes at both ends of a file
PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})(\.[^.]+)")
"""The name of one of several files: the model, its number from 1 on, how many, the suffix."""


def is_gguf(path: Path) -> bool:
    """Whether a path is that of a GGUF file: by its suffix, even if no such file exists, or by its
    first bytes."""
    return not path.is_dir() and (path.suffix.lower() == ".gguf" or begins_as_gguf(path))


def begins_as_gguf(path: Path) -> bool:
    """Whether there is a file at a path that begins with GGUF_MAGIC."""
    if not path.is_file():  # reading from a pipe would block and consume its bytes
        return False
    try:
        with path.open("rb") as file:
            return file.read(len(GGUF_MAGIC)) == GGUF_MAGIC
    except OSError:
        return False


def parts_beside(path: Path) -> tuple[Path, ...]:
    """All files of the model of which one is given, in order; InputError if some are missing."""
    if (named := PART.fullmatch(path.name)) is None:
        return (path,)
    model, _, count, suffix = named.groups()
    numbers = range(1, int(count) + 1)
    parts = tuple(path.with_name(f"{model}-{number:05}-of-{count}{suffix}") for number in numbers)
    if missing := [part.name for part in parts if not part.is_file()]:
        wrong = f"The model is in {int(count)} files, of which {len(missing)} are missing."
        received = f"no {', '.join(missing[:3])} in {str(path.parent)!r}"
        raise InputError(explain(wrong, received, "Put all parts into one folder."))
    return parts or (path,)


def key_of(paths: Sequence[Path]) -> str:
    """A digest of the sizes, times and samples of files, which stays the same when they are
    moved."""
    key = sha256()
    for path in paths:
        try:
            about = path.stat()
            with path.open("rb") as file:
                key.update(file.read(SAMPLE))
                file.seek(max(0, about.st_size - SAMPLE))
                key.update(file.read(SAMPLE))
        except OSError as error:
            wrong = f"The GGUF file cannot be read ({error.strerror})."
            beside = meant(path.name, (file.name for file in path.parent.glob("*.gguf")))
            cure = f"Check the path.{beside}"
            raise InputError(explain(wrong, repr(str(path)), cure)) from error
        key.update(f"{about.st_size} {about.st_mtime_ns}".encode())
    return key.hexdigest()
