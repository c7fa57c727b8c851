"""Whether a file is a GGUF file."""

from __future__ import annotations

from pathlib import Path

GGUF_MAGIC = b"GGUF"  # what such a file begins with


def is_gguf(path: Path) -> bool:
    """Whether a path is to be read as a GGUF file: by its name, there or not, or its beginning."""
    return not path.is_dir() and (path.suffix.lower() == ".gguf" or begins_as_gguf(path))


def begins_as_gguf(path: Path) -> bool:
    """Whether it is a file with the first letters of one."""
    if not path.is_file():  # reading from a pipe would wait, and take what it gives
        return False
    try:
        with path.open("rb") as file:
            return file.read(len(GGUF_MAGIC)) == GGUF_MAGIC
    except OSError:
        return False
