"""Packed models on disk, so that a later process need not load, pack and try them out again.

A file is named after the contents of the model folder, after the options and the processor, and
after the code that packs: `contents-variant-code`.  When a file is written, those that other code
made of the same contents and variant are removed, and so is every file that was not used for a
month.  A process that has one of them open keeps it.
"""

from __future__ import annotations

import os
import platform
import shutil
import time
from contextlib import suppress
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from forerun.base.version import __version__
from forerun.lean import kept_file
from forerun.lean.jit import sources
from forerun.lean.packed import Packed
from forerun.lean.shape import DOT_PRODUCTS, LANES, TOKENS
from forerun.loading.cache import (
    MOST_BYTES,
    cache_folder,
    is_ours,
    make_in_cache,
    why_not_cached,
)
from forerun.loading.folder_digest import contents, known_contents
from forerun.loading.light_tokenizer import KeptTokenizer

VERSION = 1  # raise it when a change elsewhere packs something else
LEAST_BYTES = 4 << 20  # smaller models are packed in no time
SPARE = 1_000_000_000  # bytes that are left free on the disk
UNUSED = 30 * 86400.0  # seconds
REPLACED = 3600.0  # seconds: another version of the code that was used within these may be in use
ABANDONED = 3600.0  # seconds after which an unfinished file counts as such
MAPPED = frozenset({"packed.weights.embedding"})

Tree = TypeVar("Tree")


class KeptModel(NamedTuple):
    """What is in a file."""

    packed: Packed
    tokenizer: KeptTokenizer


def recall(folder: Path, dtype: str, int8: bool) -> KeptModel | None:
    """What was kept of the model in a folder that has not changed since; None if nothing was."""
    digest = known_contents(folder)
    return None if digest is None else read(digest, f"{dtype} {int8}", KeptModel, MAPPED)


def keep(folder: Path, dtype: str, int8: bool, kept: KeptModel) -> str:
    """Keep a model that was tried out.  Returns why it was not kept, or an empty string."""
    weights = kept.packed.weights
    size = weights.matrices.panels.nbytes + weights.embedding.nbytes
    if size < LEAST_BYTES:
        return ""
    if size > MOST_BYTES:
        return f"they take {_gigabytes(size)}, and at most {_gigabytes(MOST_BYTES)} are kept"
    try:
        digest = "" if why_not_cached() else contents(folder)
    except OSError as error:
        return f"its files cannot be read ({error.strerror})"
    return write(digest, f"{dtype} {int8}", kept, size)


def read(
    digest: str, variant: str, kind: type[Tree], mapped: frozenset[str] = frozenset()
) -> Tree | None:
    """What was kept of contents and options; None if nothing was, or others may have written it."""
    file = _file(digest, variant)
    if not is_ours(file):
        return None
    try:
        kept = kept_file.read(file, kind, mapped)
    except (OSError, ValueError, LookupError, TypeError):
        return None
    with suppress(OSError):
        os.utime(file)
    return kept


def write(digest: str, variant: str, kept: Any, size: int = 0) -> str:
    """Keep something for the next start.  Returns why that was not possible, or an empty string.

    size: its large arrays, in bytes.
    """
    if reason := why_not_cached():
        return f"the cache {reason}. Set FORERUN_CACHE to a folder that you may write to"
    file = _file(digest, variant)
    try:
        make_in_cache(file.parent)
        _make_room(file)
        needed, free = size + SPARE * bool(size), shutil.disk_usage(file.parent).free
        if free < needed:
            told = f"{_gigabytes(needed)} are needed and {_gigabytes(free)} are free"
            return f"{told} in {str(file.parent)!r}. Set FORERUN_CACHE to a folder on another disk"
        kept_file.write(file, kept)
    except OSError as error:
        return f"{str(file.parent)!r} cannot be written to ({error.strerror})"
    return ""


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.1f} GB"


def _file(digest: str, variant: str) -> Path:
    variant = _digest(LANES, TOKENS, DOT_PRODUCTS, platform.machine(), variant)
    code = _digest(VERSION, sources(), __version__, metadata.version("transformers"))
    return cache_folder() / "packed" / f"{digest[:32]}-{variant}-{code}"


def _digest(*facts: object) -> str:
    return sha256(" ".join(map(str, facts)).encode()).hexdigest()[:16]


def _make_room(newest: Path) -> None:
    """Remove what a new file replaces, what nobody uses, and what was never finished."""
    variant = newest.name.rpartition("-")[0]
    for file in newest.parent.iterdir():
        limit = UNUSED
        if file.name.endswith(kept_file.UNFINISHED):
            limit = ABANDONED
        elif file.name.rpartition("-")[0] == variant:
            limit = REPLACED
        with suppress(OSError):  # another process may have removed it
            if time.time() - file.stat().st_mtime > limit:
                file.unlink()
