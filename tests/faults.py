"""A disk that fails: at the n-th opening, write, fsync or rename, once or for good."""

from __future__ import annotations

import builtins
import errno
import io
import os
import pathlib
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Literal
from unittest import mock

Kind = Literal["error", "death", "power"]
"""An error, after which the disk works again; the end of the process, after which it does nothing
more; and the end of the power, which takes what was not synced as well."""
KINDS: tuple[Kind, ...] = ("error", "death", "power")


class Died(BaseException):
    """The process is gone."""


class Disk:
    """Counts calls, and fails from the n-th on; a number that is never reached fails nothing."""

    def __init__(self, fails_at: int, kind: Kind, seed: int = 0) -> None:
        self.num_calls = 0
        self._fails_at, self._kind = fails_at, kind
        self._drawn = random.Random(f"{fails_at} {kind} {seed}")
        self._unsynced: dict[str, int] = {}  # bytes that are safe, by path

    def call(self) -> None:
        """One more call, which may be the one that fails."""
        number, self.num_calls = self.num_calls, self.num_calls + 1
        if self._kind == "error":
            if number == self._fails_at:
                raise OSError(self._drawn.choice([errno.ENOSPC, errno.EIO]), "the disk failed")
        elif number >= self._fails_at:
            if number == self._fails_at and self._kind == "power":
                self._lose_what_was_not_synced()
            raise Died

    def _lose_what_was_not_synced(self) -> None:
        for path, safe in self._unsynced.items():
            with suppress(OSError):
                size = os.stat(path).st_size
                os.truncate(path, self._drawn.randint(min(safe, size), size))

    def written(self, path: str) -> None:
        self._unsynced.setdefault(path, 0)

    def synced(self, number: int) -> None:
        path = os.readlink(f"/proc/self/fd/{number}")
        if path in self._unsynced:
            self._unsynced[path] = os.fstat(number).st_size

    def moved(self, old: str, new: str) -> None:
        if old in self._unsynced:
            self._unsynced[new] = self._unsynced.pop(old)


class File:
    """A file of a disk that may fail; half of what is written then arrives."""

    def __init__(self, file: Any, disk: Disk) -> None:
        self._file, self._disk = file, disk

    def write(self, data: Any) -> int:
        disk = self._disk
        with suppress(OSError):
            disk.written(os.readlink(f"/proc/self/fd/{self._file.fileno()}"))
        try:
            disk.call()
        except BaseException:
            half = (
                data[: len(data) // 2]
                if isinstance(data, str)
                else bytes(data)[::1][: len(bytes(data)) // 2]
            )
            self._file.write(half)
            self._file.flush()
            raise
        return int(self._file.write(data))

    def __enter__(self) -> File:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __iter__(self) -> Iterator[Any]:
        return iter(self._file)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


@contextmanager
def failing(fails_at: int, kind: Kind) -> Iterator[Disk]:
    """The disk of everything that is done within."""
    disk = Disk(fails_at, kind)
    real_open, real_fsync = io.open, os.fsync

    def opened(*args: Any, **options: Any) -> Any:
        disk.call()
        return File(real_open(*args, **options), disk)

    def synced(number: int) -> None:
        disk.call()
        real_fsync(number)
        disk.synced(number)

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            disk.call()
            done = real(*args, **options)
            if real in (os_replace, os_rename):
                disk.moved(os.fspath(args[0]), os.fspath(args[1]))
            return done

        return call

    os_replace, os_rename = os.replace, os.rename
    with (
        mock.patch.multiple(
            os,
            fsync=synced,
            **{
                name: counted(getattr(os, name)) for name in ("replace", "rename", "open", "unlink")
            },
            ftruncate=counted(os.ftruncate),
        ),
        mock.patch.object(io, "open", opened),
        mock.patch.object(builtins, "open", opened),
    ):
        assert pathlib.Path is not None
        yield disk
