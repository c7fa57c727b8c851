"""The other ranks as rank 0 drives them: sending calls, and ending the group when a rank is lost.

Three events end a group: the process of a rank ends (its wire closes, which is noticed at once), a
rank reports an error, or work takes longer than `pass_seconds` (a rank is stopped).  In each case
the processes started here are killed.  Then the pass of rank 0 fails where collectives run over
sockets.  On GPUs it may wait for ever, so rank 0's process is ended if its pass is still running
`GRACE_SECONDS` later.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from queue import SimpleQueue
from subprocess import TimeoutExpired
from typing import Any

from forerun.base.errors import explain
from forerun.ranks.meeting import Place, RankError, ending
from forerun.ranks.watchdog import Watchdog
from forerun.ranks.wire import Wire

GRACE_SECONDS = 10.0
"""The seconds that rank 0's pass has to fail after the group broke, and that ranks have to end when
they are asked to."""
NOTICE_SECONDS = 2.0
"""The seconds to wait for the reason after a pass has failed, because the pass may fail before the
wire of a dead rank closes or its process is reaped."""
LOAD_SECONDS = 7200.0
"""The time within which all ranks must have loaded the model."""


class Ranks:
    """The other ranks, as rank 0 sees them.

    on_failure: called once with the reason if the group breaks; a server ends itself then.
    """

    def __init__(self, place: Place, wires: dict[int, Wire], pass_seconds: float) -> None:
        self.num_ranks = place.num_ranks
        self.failure: str | None = None
        self.on_failure: Callable[[str], None] | None = None
        self._replies: SimpleQueue[Any] = SimpleQueue()
        self._place = place
        self._wires = wires
        self._lock = threading.RLock()
        self._failing = threading.Lock()
        self._failed = threading.Event()
        self._is_busy = False
        self._is_closed = False
        self._watchdog = Watchdog(pass_seconds, self._overrun)
        for rank, wire in wires.items():
            threading.Thread(
                target=self._listen, args=(rank, wire), name=f"forerun-rank-{rank}", daemon=True
            ).start()

    @contextmanager
    def together(self, what: str, *messages: Any, seconds: float | None = None) -> Iterator[None]:
        """Send messages to all ranks; the caller does its own part within the context.

        One thread at a time.  If the caller's part fails, ranks are no longer in step, so the group
        is broken.  what: the work in words, for errors.  seconds: the longest it may take, instead
        of `pass_seconds`.
        """
        with self._lock:
            self.check()
            self._is_busy = True
            self._watchdog.begin(what, seconds)
            try:
                for message in messages:
                    for wire in self._wires.values():
                        wire.send(message)
                yield
            except (RuntimeError, OSError) as error:  # a collective fails if a rank is lost
                is_known = self._failed.wait(NOTICE_SECONDS)
                self._fail(f"rank 0 failed in {what}: {error!r}")
                if is_known:
                    raise self._error() from error
                raise
            except BaseException as error:
                self._fail(f"rank 0 failed in {what}: {error!r}")
                raise
            finally:
                self._is_busy = False
                self._watchdog.end()

    def reply(self) -> Any:
        """The next answer of any rank to a message; call it within `together`."""
        message = self._replies.get()
        if message is None:
            raise self._error()
        return message

    def check(self) -> None:
        """Raise if the group is broken or closed."""
        if self.failure is not None:
            raise self._error()
        if self._is_closed:
            raise RankError(explain("The ranks have ended.", "a closed model", "Load it again."))

    def close(self) -> None:
        """End the other ranks, which frees their memory."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        self._watchdog.close()
        for wire in self._wires.values():
            wire.send(["end", None])
            wire.close()
        leave_group(is_sound=self.failure is None)
        self._place.end(GRACE_SECONDS)

    def _listen(self, rank: int, wire: Wire) -> None:
        """In a thread: receive a rank's messages until its wire closes."""
        while (message := wire.receive()) is not None:
            if "error" in message:
                self._fail(f"rank {rank} failed: {message['error']}")
            else:
                self._replies.put(message)
        if not self._is_closed:
            self._fail(f"rank {rank} ended{self._status(rank)}")

    def _status(self, rank: int) -> str:
        """The exit status of a rank in words, if it was started here and has ended."""
        process = self._place.processes.get(rank)
        with suppress(TimeoutExpired):
            return "" if process is None else f" with {ending(process.wait(NOTICE_SECONDS))}"
        return ""

    def _overrun(self, what: str) -> None:
        self._fail(f"{what}: a rank is stopped or cannot be reached")

    def _fail(self, reason: str) -> None:
        """Break the group: kill the processes started here, and keep the first reason."""
        with self._failing:
            if self.failure is not None or self._is_closed:
                return
            self.failure = reason
        for process in self._place.processes.values():
            process.kill()
        self._failed.set()
        self._replies.put(None)
        if self.on_failure is not None:
            self.on_failure(str(self._error()))
        patience = threading.Timer(GRACE_SECONDS, self._give_up)
        patience.daemon = True
        patience.start()

    def _give_up(self) -> None:
        """End this process if its pass is still running after a failure."""
        if self._is_busy and not self._is_closed:
            print(f"forerun: {self._error()}", file=sys.stderr, flush=True)
            os._exit(1)

    def _error(self) -> RankError:
        cure = "Start again; a rank's last words stand on its standard error."
        return RankError(explain("The model cannot go on without all ranks.", self.failure, cure))


def enter_group(place: Place, kind: str) -> None:
    """Join torch's process group of all ranks.  kind: "cpu" or "cuda"."""
    import torch
    import torch.distributed as dist

    device = None
    if kind == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if kind == "cuda" else "gloo",
        store=place.store,
        rank=place.rank,
        world_size=place.num_ranks,
        timeout=timedelta(seconds=LOAD_SECONDS),
        device_id=device,
    )


def leave_group(*, is_sound: bool) -> None:
    """Leave the process group.  A broken one on GPUs is not left in order, which could wait for
    ranks that are gone."""
    import torch.distributed as dist

    if dist.is_initialized() and (is_sound or dist.get_backend() == "gloo"):
        with suppress(RuntimeError):
            dist.destroy_process_group()
