"""The cache folder, and whether its contents can be trusted.

The cache holds only what can be made again. A note or a converted model in it affects every text,
so it is trusted only if nobody else could have written it: its files and folders must belong to
this user or to the system, and others must not be able to write to them. If several users share a
cache folder that all may write to, each has a folder of its own in it.
"""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

from forerun.loading.folders import at_home

OTHERS = stat.S_IWGRP | stat.S_IWOTH
"""Permissions that other users must not have for anything in the cache."""


def cache_folder() -> Path:
    """The folder of this user's cache."""
    chosen = _chosen()
    try:
        is_shared = not _is_own(chosen)
    except OSError:  # it is made when something is kept
        is_shared = False
    return chosen / f"of-{os.geteuid()}" if is_shared else chosen


def make_in_cache(folder: Path) -> None:
    """Make a folder in the cache, and the cache itself; others may not write to either."""
    _chosen().mkdir(0o755, parents=True, exist_ok=True)
    cache_folder().mkdir(0o700, exist_ok=True)
    folder.mkdir(0o755, exist_ok=True)


def is_ours(path: Path) -> bool:
    """Whether nobody else could have written this file or folder in the cache."""
    try:
        return all(map(_is_own, (cache_folder(), path.parent, path)))
    except OSError:
        return False


def close_to_others(folder: Path) -> None:
    """Take away write permission from other users, whatever the umask allowed."""
    for path in (folder, *folder.iterdir()):
        path.chmod(stat.S_IMODE(path.stat().st_mode) & ~OTHERS)


def why_not_cached() -> str:
    """The reason why the cache cannot be written; empty if it can."""
    folder = cache_folder()
    try:
        make_in_cache(folder)
    except OSError as error:
        return f"{folder} cannot be made ({error.strerror})"
    if not os.access(folder, os.W_OK):
        return f"{folder} cannot be written to"
    return "" if _is_own(folder) else f"{folder} may be written to by others"


def _chosen() -> Path:
    """The folder that FORERUN_CACHE names, or the usual place of the system."""
    if chosen := os.environ.get("FORERUN_CACHE"):
        return at_home(chosen)
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "forerun"


def _is_own(path: Path) -> bool:
    """Whether a path belongs to this user or to the system, and others may not write to it."""
    if not hasattr(os, "geteuid"):  # Windows: a home is closed to others
        return True
    found = path.stat()
    return found.st_uid in (os.geteuid(), 0) and not found.st_mode & OTHERS
