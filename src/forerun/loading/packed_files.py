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
from typing import NamedTuple

from forerun.base.version import __version__
from forerun.lean import kept_file
from forerun.lean.jit import sources
from forerun.lean.packed import Packed
from forerun.lean.shape import DOT_PRODUCTS, LANES, TOKENS
from forerun.loading.cache import cache_folder, is_ours, make_in_cache
from forerun.loading.folder_digest import contents, known_contents
from forerun.loading.light_tokenizer import KeptTokenizer

VERSION = 1  # raise it when a change elsewhere packs something else
LEAST_BYTES = 4 << 20  # smaller models are packed in no time
MOST_BYTES = 2 << 30  # larger ones take their time anyway
SPARE = 4  # times its size must be free on the disk
UNUSED = 30 * 86400.0  # seconds
REPLACED = 3600.0  # seconds: another version of the code that was used within these may be in use
ABANDONED = 3600.0  # seconds after which an unfinished file counts as such
MAPPED = frozenset({"packed.weights.embedding"})


class KeptModel(NamedTuple):
    """What is in a file."""

    packed: Packed
    tokenizer: KeptTokenizer


def recall(folder: Path, dtype: str, int8: bool) -> KeptModel | None:
    """What was kept of the model in a folder that has not changed since; None if nothing was."""
    digest = known_contents(folder)
    if digest is None:
        return None
    file = _file(digest, dtype, int8)
    if not is_ours(file):
        return None
    try:
        kept = kept_file.read(file, KeptModel, MAPPED)
    except (OSError, ValueError, LookupError, TypeError):
        return None
    with suppress(OSError):
        os.utime(file)
    return kept


def keep(folder: Path, dtype: str, int8: bool, kept: KeptModel) -> None:
    """Keep a model that was tried out; where the disk is full or not ours, do without."""
    weights = kept.packed.weights
    size = weights.matrices.panels.nbytes + weights.embedding.nbytes
    if not LEAST_BYTES <= size <= MOST_BYTES:
        return
    try:
        place = cache_folder() / "packed"
        make_in_cache(place)
        if not os.access(place, os.W_OK):
            return
        file = _file(contents(folder), dtype, int8)
        _make_room(file)
        if shutil.disk_usage(place).free >= SPARE * size:
            kept_file.write(file, kept)
    except OSError:
        return


def _file(digest: str, dtype: str, int8: bool) -> Path:
    variant = _digest(LANES, TOKENS, DOT_PRODUCTS, platform.machine(), dtype, int8)
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
