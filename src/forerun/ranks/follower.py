"""The ranks after rank 0: each has a part of the model and executes the calls that rank 0 sends.

A follower ends when rank 0 ends, because its wire closes.  It ignores the signals by which people
and supervisors stop a program, because rank 0 receives them too and may have answers to finish.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Sequence
from typing import Any

from forerun.base.errors import InputError, explain
from forerun.ranks.meeting import (
    Place,
    RankError,
    join,
    launched_ranks,
    place_by_torchrun,
    place_in,
)
from forerun.ranks.ranks import LOAD_SECONDS, enter_group, leave_group
from forerun.ranks.watchdog import Watchdog
from forerun.ranks.wire import Wire

ON_ROWS = ("score", "commit", "release", "copy_prefix", "truncate", "watch")
"""The methods of the model that take a state; their other arguments come from rank 0."""


def is_follower(num_ranks: int | None) -> bool:
    """Whether this process is one of the ranks that torchrun started, but not rank 0.

    num_ranks: the number of ranks that the user asked for; None for none.
    """
    launched = launched_ranks()
    if num_ranks is None or launched is None:
        return False
    if launched != num_ranks:
        wrong = "torchrun started another number of ranks."
        received = f"{launched} processes for --tensor-parallel {num_ranks}"
        cure = f"Use --tensor-parallel {launched}, or torchrun --nproc-per-node {num_ranks}."
        raise InputError(explain(wrong, received, cure))
    return os.environ["RANK"] != "0"


def follow(place: Place | None = None) -> int:
    """Work as a rank until rank 0 ends; returns the exit status for the process."""
    place = place or place_by_torchrun()
    wire = join(place)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    job = wire.receive()
    if job is None:
        return 1
    watchdog = Watchdog(job["pass_seconds"], _exit, is_alone=wire.is_closed)
    try:
        watchdog.begin("loading", LOAD_SECONDS)
        if not Follower(place, wire, job, watchdog).work():
            _exit("rank 0 is gone")
    except Exception as error:
        if wire.is_closed():
            _exit(f"rank 0 is gone ({type(error).__name__})")
        traceback.print_exc()
        wire.send({"error": f"{type(error).__name__}: {error}"})
        _exit("it failed")
    leave_group(is_sound=True)
    return 0


class Follower:
    """One rank's part of the model, and its rows."""

    def __init__(self, place: Place, wire: Wire, job: dict[str, Any], watchdog: Watchdog) -> None:
        from forerun.ranks.loading import load_shard

        enter_group(place, job["kind"])
        self._rank = place.rank
        self._wire = wire
        self._watchdog = watchdog
        self._shard = load_shard(place.num_ranks, job["name"], job["dtype"], job["options"])
        self._states: dict[int, Any] = {}

    def work(self) -> bool:
        """Execute calls until rank 0 ends the run; returns False if rank 0 has disappeared."""
        self._watchdog.end()
        while (message := self._wire.receive()) is not None:
            verb, number, *arguments = message
            if verb == "end":
                return True
            self._watchdog.begin(verb)
            self._do(verb, number, arguments)
            self._watchdog.end()
        return False

    def _do(self, verb: str, number: int, arguments: Sequence[Any]) -> None:
        """Carry out one message of rank 0: make or drop rows, or call a method on them."""
        from forerun.ranks.model import digest, start, whole_embedding

        if verb == "start":
            self._states[number] = start(self._shard, *arguments)
        elif verb == "drop":
            del self._states[number]
        elif verb == "fresh":
            self._shard.fresh(*arguments)
        elif verb == "embedding":
            whole_embedding(self._shard.model)
        elif verb == "digest":
            self._wire.send({"rank": self._rank, "digest": digest(self._shard.model)})
        elif verb in ON_ROWS:
            getattr(self._shard, verb)(self._states[number], *arguments)
        else:
            raise RankError(explain("Rank 0 asks for what no rank can do.", verb, "Report this."))


def _exit(reason: str) -> None:
    """End this process at once.  Its main thread may be stuck, and an orderly exit from a process
    group could wait for ranks that are gone."""
    print(f"forerun: this rank ends: {reason}", file=sys.stderr, flush=True)
    os._exit(1)


def main(words: Sequence[str]) -> int:
    """Run a rank that `start_ranks` started; returns its exit status.

    words: the folder of the store, the number of the rank, and the number of ranks.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    folder, rank, num_ranks = words
    try:
        return follow(place_in(folder, int(rank), int(num_ranks)))
    except RankError as error:
        print(f"forerun: rank {rank}: {error}", file=sys.stderr)
        return 1
