"""Clears the cache: only what Forerun made there, and only after saying what that is."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from forerun.base.errors import InputError, explain
from forerun.loading.bundled import PACKAGES, cache_folder

TITLES = "|".join(re.escape(package.title) for package in PACKAGES.values())
CONVERTED = re.compile(rf"({TITLES}|.+-[0-9a-f]{{16}})-\d+(\..+)?")
"""Folders of converted models, unfinished ones included."""
FILES = {
    "packed": re.compile(r"[0-9a-f]{32}-[0-9a-f]{16}.*"),
    "contents": re.compile(r"[0-9a-f]{32}\..+"),
}
"""Folders of ours, and what we call the files in them."""


def clear_cache(*, is_agreed: bool) -> int:
    """Say what there is, ask unless it is agreed, and remove it; the exit status."""
    folder, made = cache_folder(), list(_made(cache_folder()))
    if not made:
        print(f"Forerun has made nothing in {folder}.")
        return 0
    sizes = {path: _bytes(path) for path in made}
    groups: dict[str, int] = {}
    for path, size in sizes.items():
        name = path.name if path.parent == folder else path.parent.name
        groups[name] = groups.get(name, 0) + size
    print(f"Forerun made this in {folder}, and makes it again when it is needed:")
    for name, size in groups.items():
        print(f"  {size / 1e6:>8,.0f} MB  {name}")
    if not is_agreed and not _agrees():
        print("Nothing was removed.")
        return 1
    for path in made:
        with suppress(FileNotFoundError):  # another process may have removed it
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    print(f"Removed {sum(sizes.values()) / 1e6:,.0f} MB.")
    return 0


def _agrees() -> bool:
    if not sys.stdin.isatty():
        wrong, cure = "Nobody can be asked whether to remove this.", "Add --yes to remove it."
        raise InputError(explain(wrong, "no terminal", cure))
    return input("Remove it? [y/N] ").strip().lower() in ("y", "yes")


def _made(folder: Path) -> Iterator[Path]:
    """Files and folders that we made; links are somebody else's."""
    for child in sorted(folder.iterdir()) if folder.is_dir() else ():
        if child.is_symlink() or not child.is_dir():
            continue
        if child.name in FILES:
            for file in sorted(child.iterdir()):
                if FILES[child.name].fullmatch(file.name) and not file.is_symlink():
                    yield file
        elif CONVERTED.fullmatch(child.name):
            yield child


def _bytes(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.lstat().st_size for file in files if not file.is_dir())
