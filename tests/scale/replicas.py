"""What the tests on Ray share: replicas' processes, which can be found and killed."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path


def replica_pids(app: str) -> list[int]:
    """The processes of replicas that are ready, the oldest first.

    app: how the names of their applications begin; with a colon, the whole name.
    """
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            title = (place / "cmdline").read_bytes()
            began = int((place / "stat").read_text().rpartition(")")[2].split()[19])
        except OSError:
            continue
        is_replica = title.startswith(f"ray::ServeReplica:{app}".encode())
        if is_replica and b"ModelReplica" in title and b"initialize" not in title:
            found.append((began, int(place.name)))
    return [pid for _, pid in sorted(found)]


def kill_one(app: str, seconds: float) -> int:
    """Kill the oldest replica with -9, when there is one, and wait until it is dead."""
    deadline = time.monotonic() + seconds
    while not (pids := replica_pids(app)):
        assert time.monotonic() < deadline, "no replica"
        time.sleep(0.05)
    os.kill(pids[0], signal.SIGKILL)
    while pids[0] in replica_pids(app):
        assert time.monotonic() < deadline, "it does not die"
        time.sleep(0.01)
    return pids[0]


def wait_until_gone(app: str, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while pids := replica_pids(app):
        assert time.monotonic() < deadline, pids
        time.sleep(0.1)


def kill_descendant(title: str) -> int:
    """Kill with -9 the first process under this one whose title begins so."""
    for place in Path("/proc").glob("[0-9]*"):
        try:
            is_meant = (place / "cmdline").read_bytes().startswith(title.encode())
        except OSError:
            continue
        if is_meant and os.getpid() in ancestors(int(place.name)):
            os.kill(int(place.name), signal.SIGKILL)
            return int(place.name)
    raise AssertionError(f"no process {title!r}")


def descendants(pid: int) -> list[int]:
    """All processes under one."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ends while it is looked at
            if int(place.name) != pid and pid in ancestors(int(place.name)):
                found.append(int(place.name))
    return found


def ancestors(pid: int) -> list[int]:
    parents = []
    while pid > 1:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        parents.append(pid)
    return parents
