"""Tells GGUF files from others, without the gguf package."""

from __future__ import annotations

from pathlib import Path

GGUF_MAGIC = b"GGUF"  # the first bytes of such a file


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
