"""Finds damage to a converted copy of a model, by a list of its files that is kept with it.

A file whose size and times are those of the list is not read again, because reading half a gigabyte
takes most of a second.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from hashlib import file_digest
from pathlib import Path

LIST = "files.list"
Listed = dict[str, tuple[list[int], str]]
"""The stamp and the digest of each file of a folder, by the file's name."""


def write_list(folder: Path) -> None:
    """Write the list of the files in a folder that has just been made."""
    _write(folder, {file.name: (_stamp(file), _digest(file)) for file in _files(folder)})


def is_whole(folder: Path) -> bool:
    """Whether a folder has exactly the files of its list, with unchanged contents."""
    try:
        listed: Listed = json.loads((folder / LIST).read_text(encoding="utf-8"))
        files = _files(folder)
        if {file.name for file in files} != listed.keys():
            return False
        touched = {file: _stamp(file) for file in files if _stamp(file) != listed[file.name][0]}
        for file, stamp in touched.items():  # files that may only have been copied or restored
            (size, *_), digest = listed[file.name]
            if stamp[0] != size or _digest(file) != digest:
                return False
            listed[file.name] = (stamp, digest)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return False
    if touched:
        with suppress(OSError):  # without the new list, the files are read again next time
            _write(folder, listed)
    return True


def is_unlisted(folder: Path) -> bool:
    """Whether a folder is a copy made by an earlier version, which wrote no list."""
    try:
        return (folder / "config.json").is_file() and not (folder / LIST).exists()
    except OSError:
        return False


def _files(folder: Path) -> list[Path]:
    """The files of the model in a folder.  Hidden ones are left out: they belong to the system, or
    are a list that is being written."""
    return [
        file for file in folder.iterdir() if file.name != LIST and not file.name.startswith(".")
    ]


def _write(folder: Path, listed: Listed) -> None:
    unfinished = folder / f".{time.time_ns()}.{LIST}"
    unfinished.write_text(json.dumps(listed), encoding="utf-8")
    unfinished.replace(folder / LIST)


def _stamp(file: Path) -> list[int]:
    """The size, times and inode of a file, which change when it is written to."""
    seen = file.stat()
    return [seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns, seen.st_ino]


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return file_digest(stream, "sha256").hexdigest()
