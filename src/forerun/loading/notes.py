"""Notes about models on disk, which save later processes the work of examining them again.

A note's file name is made of the model's contents, of the options and the processor, and of the
code that packs: `contents-variant-code`. Writing a note removes those that other code made for the
same contents and variant, and all files that were not used for a month. A process that has such a
file open can still read it.
"""

from __future__ import annotations

import os
import platform
import time
from contextlib import suppress
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

from forerun.base.version import __version__
from forerun.lean import kept_file
from forerun.lean.jit import sources
from forerun.lean.shape import DOT_PRODUCTS, LANES, TOKENS
from forerun.loading.cache import cache_folder, is_ours, make_in_cache, why_not_cached

VERSION = 2  # raise it when a change elsewhere packs something else
UNUSED = 30 * 86400.0  # seconds
REPLACED = 3600.0  # seconds: another version of the code that was used within these may be in use
ABANDONED = 3600.0  # seconds after which an unfinished file counts as such

Tree = TypeVar("Tree")


def read(digest: str, variant: str, kind: type[Tree]) -> Tree | None:
    """The note about these contents and options; None if there is none or it cannot be trusted."""
    file = _file(digest, variant)
    if not is_ours(file):
        return None
    try:
        kept = kept_file.read(file, kind)
    except (OSError, ValueError, LookupError, TypeError):
        return None
    with suppress(OSError):
        os.utime(file)
    return kept


def write(digest: str, variant: str, kept: Any) -> str:
    """Keep a note for the next start. Returns why that failed, or an empty string."""
    if reason := why_not_cached():
        return f"the cache {reason}. Set FORERUN_CACHE to a folder that you may write to"
    file = _file(digest, variant)
    try:
        make_in_cache(file.parent)
        _make_room(file)
        kept_file.write(file, kept)
    except OSError as error:
        return f"{str(file.parent)!r} cannot be written to ({error.strerror})"
    return ""


def _file(digest: str, variant: str) -> Path:
    variant = _digest(LANES, TOKENS, DOT_PRODUCTS, platform.machine(), variant)
    code = _digest(VERSION, sources(), __version__, metadata.version("transformers"))
    return cache_folder() / "packed" / f"{digest[:32]}-{variant}-{code}"


def _digest(*facts: object) -> str:
    return sha256(" ".join(map(str, facts)).encode()).hexdigest()[:16]


def _make_room(newest: Path) -> None:
    """Remove notes that are replaced by the newest, unused ones, and unfinished files."""
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
