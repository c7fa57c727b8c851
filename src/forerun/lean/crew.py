"""Threads that share the work of a pass, stage by stage.

A stage consists of a number of items. A thread claims runs of items until none is left, then waits
for the items that other threads still hold. A thread that holds no item is never waited for: a
helper that the system starts late, or not at all, costs its share of the work and no more, and a
pass needs no pool that only one caller may use. Threads wait by spinning, because stages last
microseconds. A thread that has spun for long sleeps, because then another thread was probably
interrupted in the middle of an item and needs an idle core to continue.
"""

from __future__ import annotations

import os
import platform
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numpy.typing import NDArray

from forerun.lean.jit import compiled, entry, intrinsic, sources

TOPOLOGY = Path("/sys/devices/system/cpu")

CLAIMED, FINISHED = 0, 1  # runs, items
THREADS, IS_OVER = 2, 3  # of the pass, in its first stage only
LINE = 8  # counters per stage: one cache line
MOST_THREADS = 16  # unless `Crew` is given a size: a stage has tens of items
PATIENCE = 2000  # looks before a waiting thread offers its core to others at every further one
NUM_OFFERS = 2000  # after which it sleeps between looks, or does without helpers
SLEEP = 50  # microseconds
PAUSE: dict[str, tuple[str, list[int]]] = {
    "x86_64": ("llvm.x86.sse2.pause", []),
    "aarch64": ("llvm.aarch64.hint", [1]),
}
PAUSE |= {"AMD64": PAUSE["x86_64"], "arm64": PAUSE["aarch64"]}
CAN_WAIT = os.name == "posix"

Board = NDArray[np.int64]  # (stages, LINE)


class Crew:
    """The calling thread and `size - 1` helpers.

    size: the number of threads; None takes `usual_threads`, at most MOST_THREADS.  Crews of one
    size share their helpers, so a model and its drafter, which take turns, have no more threads
    than cores.  With more, the system would let two of them share a core.
    """

    def __init__(self, size: int | None = None) -> None:
        self.size = size or min(usual_threads(), MOST_THREADS)

    def run(self, num_stages: int, work: Callable[..., None], *arguments: Any) -> None:
        """`work(board, *arguments)` on every thread; returns when the last item is finished."""
        self.call(num_stages, work, *arguments).finish()

    def begin(self, num_stages: int, work: Callable[..., None], *arguments: Any) -> Begun:
        """Let the helpers begin `work(board, *arguments)` while the caller goes on in Python.

        Helpers need Python's lock to begin, so the caller releases it until one of them has begun.
        It spins meanwhile: the system would start a helper on the core of a caller that sleeps.
        """
        begun = self.call(num_stages, work, *arguments)
        if self.size > 1:
            wait_for_claim(begun.board)
        return begun

    def call(self, num_stages: int, work: Callable[..., None], *arguments: Any) -> Begun:
        """Call the helpers and return at once; they begin when Python's lock is free."""
        board = new_board(num_stages, self.size)
        call: Call = []
        if self.size > 1:
            call += work, board, *arguments
            calls = _helpers(os.getpid(), self.size - 1)
            for _ in range(self.size - 1):
                calls.put(call)
        return Begun(board, call, work, arguments)


@dataclass(slots=True)
class Begun:
    """A pass that helpers were called for; `finish` completes it."""

    board: Board
    call: Call  # the entry in the queue of the helpers
    work: Callable[..., None]
    arguments: tuple[Any, ...]

    def finish(self) -> None:
        """Take part in the work; returns when the last item is finished.

        Each pass has its own board, which says at the end that the pass is over, so that a helper
        that arrives late begins nothing.  The call is cleared, so that helpers that have not begun
        are free for the next pass.
        """
        self.work(self.board, *self.arguments)
        self.call.clear()
        self.board[0, IS_OVER] = 1


def new_board(num_stages: int, num_threads: int) -> Board:
    """A board (stages, LINE) without claims, for a pass of `num_threads` threads."""
    board: Board = np.zeros((num_stages, LINE), np.int64)
    board[0, THREADS] = num_threads
    return board


Call = list[Any]
"""A function and its arguments; an empty list is a call that was cancelled."""


@cache
def _helpers(process: int, count: int) -> SimpleQueue[Call]:
    """Start `count` helpers and return the queue from which they take calls.

    process: the id of this process.  It is part of the cache's key because a fork inherits the
    queue without the threads.  A pool of the standard library would make a future with locks for
    each call, which takes five times as long as this queue.
    """
    calls: SimpleQueue[Call] = SimpleQueue()
    for number in range(count):
        threading.Thread(
            target=_help, args=(calls,), name=f"forerun-lean-{number}", daemon=True
        ).start()
    return calls


def _help(calls: SimpleQueue[Call]) -> None:
    """The loop of a helper: take a call from the queue and execute it, forever."""
    while True:
        if call := tuple(calls.get()):
            try:
                call[0](*call[1:])
            except Exception:  # the caller does without this helper
                continue
            finally:
                del call  # its arrays may be large


@compiled
def share(board: Board, stage: int, count: int) -> Iterator[int]:
    """Yield the items of a stage that this thread claims; ends when all `count` are finished.

    A run of items is half of an equal share of what is left.  Long runs are good because the data
    of the next item is fetched while one is multiplied, and would be fetched in vain if another
    thread took it; the last runs are short so that no thread waits long.  A claim is followed by a
    look at whether the pass is over, because then its memory may already serve the next pass.
    """
    parts = 2 * board[0, THREADS]
    number, first, last = 0, 0, 0
    mine = add(board, stage * LINE + CLAIMED, 1)
    while True:
        while number <= mine and first < count:
            first, last = last, last + (count - last + parts - 1) // parts
            number += 1
        if first >= count or look(board, IS_OVER):
            break
        for item in range(first, last):  # noqa: UP028 (Numba has no `yield from`)
            yield item
        add(board, stage * LINE + FINISHED, last - first)
        mine = add(board, stage * LINE + CLAIMED, 1)
    looks = 0
    while look(board, stage * LINE + FINISHED) < count and not look(board, IS_OVER):
        pause()
        looks += 1
        if looks > PATIENCE + NUM_OFFERS:
            sleep(SLEEP)
        elif looks > PATIENCE:
            give_way()


@intrinsic
def add(context: Any, board: Any, index: Any, amount: Any) -> Any:
    """Atomically add `amount` to a counter of the board; returns the number before."""
    signature = types.intp(board, types.intp, types.intp)

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        place = _counter(context, builder, signature, values)
        return builder.atomic_rmw("add", place, values[2], ordering="seq_cst")

    return signature, generate


@intrinsic
def look(context: Any, board: Any, index: Any) -> Any:
    """Atomically read a counter of the board."""
    signature = types.intp(board, types.intp)

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        place = _counter(context, builder, signature, values)
        return builder.load_atomic(place, ordering="acquire", align=8)

    return signature, generate


@intrinsic
def pause(context: Any) -> Any:
    """Execute the processor's instruction for spinning threads, if it has one."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        if platform.machine() in PAUSE:
            name, numbers = PAUSE[platform.machine()]
            kind = ir.FunctionType(ir.VoidType(), [ir.IntType(32)] * len(numbers))
            function = cgutils.get_or_insert_function(builder.module, kind, name)
            builder.call(function, [ir.IntType(32)(number) for number in numbers])
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def give_way(context: Any) -> Any:
    """Offer the core to another thread, if the system has a call for that."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return _call_system(context, builder, "sched_yield", [])

    return types.void(), generate


@intrinsic
def sleep(context: Any, microseconds: Any) -> Any:
    """Leave the core idle for at least this number of microseconds, if the system has a call."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        count = builder.trunc(values[0], ir.IntType(32))
        return _call_system(context, builder, "usleep", [count])

    return types.void(types.int64), generate


def _call_system(context: Any, builder: Any, name: str, values: list[Any]) -> Any:
    if CAN_WAIT:
        kind = ir.FunctionType(ir.IntType(32), [value.type for value in values])
        builder.call(cgutils.get_or_insert_function(builder.module, kind, name), values)
    return context.get_dummy_value()


def _counter(context: Any, builder: Any, signature: Any, values: Any) -> Any:
    board, index = values[:2]
    array = context.make_array(signature.args[0])(context, builder, board)
    return builder.gep(array.data, [index])


def build(revision: int) -> Callable[[Board], None]:
    @entry
    def wait_for_claim(board: Board) -> None:
        """Wait until a helper has claimed an item, but not longer than about a millisecond."""
        looks = 0 * revision
        while look(board, CLAIMED) == 0 and looks < PATIENCE + NUM_OFFERS:
            pause()
            looks += 1
            if looks > PATIENCE:
                give_way()

    return wait_for_claim


wait_for_claim = build(sources())


def usual_threads() -> int:
    """The number of threads that torch would use, without importing it: torch's own answer where it
    is imported already, else OMP_NUM_THREADS, else one for each core."""
    torch: Any = sys.modules.get("torch")
    if hasattr(torch, "get_num_threads"):
        return int(torch.get_num_threads())
    stated = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    return int(stated) if stated.isdigit() and int(stated) else num_cores()


def num_cores(topology: Path = TOPOLOGY) -> int:
    """How many cores this process may use; two logical processors of one core count once.

    topology: the folder in which Linux describes processors.
    """
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    cores = set()
    for processor in os.sched_getaffinity(0):
        try:
            cores.add((topology / f"cpu{processor}/topology/thread_siblings_list").read_text())
        except OSError:  # the system does not describe this processor
            cores.add(str(processor))
    return len(cores)
