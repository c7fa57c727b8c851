"""Connects ranks that were started here or by torchrun.

Rank 0 opens a listening socket, and puts its address and a secret into a store that only the ranks
of this run can read: a file in a private folder, or torchrun's own store.  The others connect and
send the secret and their versions.  Nothing is loaded before all have come and versions agree.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from importlib import metadata
from typing import Any

from forerun.base.errors import ForerunError, InputError, explain
from forerun.base.version import __version__
from forerun.ranks.wire import Wire

JOIN_SECONDS = 120.0
"""The time within which all ranks must have connected."""
KNOCK_SECONDS = 5.0
"""The time within which a connection must send its secret."""
ADDRESS = "forerun/door"
"""The key under which the shared store holds rank 0's host, port and secret."""


class RankError(ForerunError, RuntimeError):
    """A rank is gone, stuck, or has failed, and the model cannot go on."""


@dataclass
class Place:
    """The number of a rank, the number of ranks, and the store they share."""

    rank: int
    num_ranks: int
    store: Any
    host: str = "127.0.0.1"  # where the others reach rank 0
    processes: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)  # started here
    folder: tempfile.TemporaryDirectory[str] | None = None

    def end(self, patience: float = 0.0) -> None:
        """End the processes that were started here; after `patience` seconds they are killed."""
        for process in self.processes.values():
            try:
                process.wait(patience)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self.folder is not None:
            self.folder.cleanup()


def versions() -> dict[str, str]:
    """The versions of packages, which must be equal on all ranks, so that passes are equal."""
    packages = {name: metadata.version(name) for name in ("torch", "transformers")}
    return {"forerun": __version__, **packages}


def launched_ranks() -> int | None:
    """The number of ranks that torchrun has started, this process included; None if torchrun has
    not started this process."""
    is_launched = all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR"))
    return int(os.environ["WORLD_SIZE"]) if is_launched else None


def place_by_torchrun() -> Place:
    """This process's place among the ranks that torchrun has started."""
    import torch.distributed as dist

    limit = timedelta(seconds=JOIN_SECONDS)
    store, rank, num_ranks = next(iter(dist.rendezvous("env://", timeout=limit)))
    return Place(rank, num_ranks, store, os.environ["MASTER_ADDR"])


def place_in(folder: str, rank: int, num_ranks: int) -> Place:
    """The place of a rank that was started by `start_ranks`."""
    import torch.distributed as dist

    if sys.platform == "linux":  # ranks of one machine need no other network
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    return Place(rank, num_ranks, dist.FileStore(os.path.join(folder, "store"), num_ranks))


def start_ranks(num_ranks: int) -> Place:
    """Start the other ranks as processes of this machine; this process is rank 0."""
    folder = tempfile.TemporaryDirectory(prefix="forerun-ranks-")
    place = place_in(folder.name, 0, num_ranks)
    place.folder = folder
    for rank in range(1, num_ranks):
        environment = {**os.environ, "LOCAL_RANK": str(rank)}
        words = [folder.name, str(rank), str(num_ranks)]
        place.processes[rank] = subprocess.Popen(
            [sys.executable, "-m", "forerun.ranks", *words],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
    return place


def receive_ranks(place: Place) -> dict[int, Wire]:
    """At rank 0: open the socket, wait for all other ranks, and refuse them if versions differ.

    Returns the wire to each rank.  Raises RankError if a rank does not come in time.
    """
    secret = secrets.token_hex(16)
    wires: dict[int, Wire] = {}
    told = {0: versions()}
    deadline = time.monotonic() + JOIN_SECONDS
    with socket.create_server((place.host, 0)) as door:
        door.settimeout(0.2)
        address = [place.host, door.getsockname()[1], secret]
        place.store.set(ADDRESS, json.dumps(address))
        while len(wires) < place.num_ranks - 1:
            _check_arrival(place, wires, deadline)
            try:
                connection, _ = door.accept()
            except TimeoutError:
                continue
            wire = Wire(connection)
            hello = wire.receive(KNOCK_SECONDS)
            if not isinstance(hello, dict) or not _knows(hello, secret):
                wire.close()
                continue
            wires[hello["rank"]] = wire
            told[hello["rank"]] = hello["versions"]
    reason = _difference(told)
    for wire in wires.values():
        wire.send({"refused": reason} if reason else {"welcome": place.num_ranks})
    if reason:
        cure = "Install the same versions wherever ranks run."
        raise InputError(explain("Ranks have different versions.", reason, cure))
    return wires


def join(place: Place) -> Wire:
    """At another rank: connect to rank 0; raises RankError if rank 0 refuses."""
    place.store.set_timeout(timedelta(seconds=JOIN_SECONDS))
    host, port, secret = json.loads(place.store.get(ADDRESS))
    wire = Wire(socket.create_connection((host, port), timeout=JOIN_SECONDS))
    wire.send({"secret": secret, "rank": place.rank, "versions": versions()})
    answer = wire.receive(JOIN_SECONDS)
    if not isinstance(answer, dict) or "welcome" not in answer:
        reason = "rank 0 is gone" if answer is None else answer["refused"]
        raise RankError(explain("Rank 0 did not let this rank in.", reason, "See its own words."))
    return wire


def _knows(hello: Mapping[str, Any], secret: str) -> bool:
    """Whether the first message of a rank contains the secret; the comparison takes constant
    time."""
    return hmac.compare_digest(str(hello.get("secret")), secret)


def _check_arrival(place: Place, present: Mapping[int, Wire], deadline: float) -> None:
    """Raise RankError if a missing rank has ended, or if time is up."""
    for rank, process in place.processes.items():
        status = process.poll()
        if rank not in present and status is not None:
            cure = "What it said on standard error stands above."
            wrong = "A rank ended before it had joined the others."
            raise RankError(explain(wrong, f"rank {rank} with {ending(status)}", cure))
    if time.monotonic() > deadline:
        missing = [rank for rank in range(1, place.num_ranks) if rank not in present]
        wrong = f"Not all ranks came within {JOIN_SECONDS:g} s."
        cure = "Start all of them with the same command, and see what they say."
        raise RankError(explain(wrong, f"no word of ranks {missing}", cure))


def _difference(told: Mapping[int, Mapping[str, str]]) -> str:
    """The versions that differ from those of rank 0, in words; empty if none do."""
    differences: Sequence[str] = [
        f"{package} {version} on rank {rank}, {told[0].get(package)} on rank 0"
        for rank, packages in sorted(told.items())
        for package, version in packages.items()
        if version != told[0].get(package)
    ]
    return "; ".join(differences)


def ending(status: int) -> str:
    """An exit status in words."""
    return f"signal {-status}" if status < 0 else f"status {status}"
