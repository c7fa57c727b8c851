"""Threads that share the work of a pass, stage by stage.

Each stage is a number of items.  A thread claims a run of them until none is left, then waits for
those that others still hold.  Nobody waits for a thread that holds nothing: a helper that the
system starts late, or not at all, costs its share and no more, and a pass needs no pool that
only one caller may use.  Waiting is spinning, because stages last microseconds.  Who has spun for
long waits for a thread that the system has stopped in the middle of an item, and sleeps: an idle
core is where the system lets the stopped thread go on.
"""

from __future__ import annotations

import os
import platform
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from queue import SimpleQueue
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numpy.typing import NDArray

from forerun.lean.jit import compiled, entry, intrinsic, sources
from forerun.lean.threads import usual_threads

CLAIMED, FINISHED = 0, 1  # runs, items
THREADS, IS_OVER = 2, 3  # of the pass, in its first stage only
LINE = 8  # counters per stage: one cache line
MOST_THREADS = 16  # unless told otherwise: a stage has tens of items, and each helper is called
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
    """The calling thread and `size - 1` helpers; as many as torch would use, if not told.

    Crews of one size share their helpers.  A model and its drafter, which take turns, then have no
    more threads than cores: the system would let two of three share a core.
    """

    def __init__(self, size: int | None = None) -> None:
        self.size = size or min(usual_threads(), MOST_THREADS)

    def run(self, num_stages: int, work: Callable[..., None], *arguments: Any) -> None:
        """`work(board, *arguments)` on every thread; returns when the last item is finished."""
        self.call(num_stages, work, *arguments).finish()

    def begin(self, num_stages: int, work: Callable[..., None], *arguments: Any) -> Begun:
        """The same, begun by the helpers while the caller does something else in Python.

        They need Python's lock to begin, so the caller lets go of it until one of them has.  It
        spins meanwhile: the system would start a helper on the core of a caller that sleeps.
        """
        begun = self.call(num_stages, work, *arguments)
        if self.size > 1:
            wait_for_claim(begun.board)
        return begun

    def call(self, num_stages: int, work: Callable[..., None], *arguments: Any) -> Begun:
        """Call the helpers, and go on: they begin when Python's lock is free."""
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
    """A pass that is under way, or will be."""

    board: Board
    call: Call  # what the helpers were asked for
    work: Callable[..., None]
    arguments: tuple[Any, ...]

    def finish(self) -> None:
        """Take part; returns when the last item is finished.

        Each pass has its own board, which says at the end that it is over: a helper that arrives
        later, or was stopped on its way, begins nothing any more.  One that has not begun by then
        is called off, to be free for the next pass.
        """
        self.work(self.board, *self.arguments)
        self.call.clear()
        self.board[0, IS_OVER] = 1


def new_board(num_stages: int, num_threads: int) -> Board:
    """Nothing is claimed yet; `num_threads` may claim."""
    board: Board = np.zeros((num_stages, LINE), np.int64)
    board[0, THREADS] = num_threads
    return board


Call = list[Any]
"""A function with its arguments; an empty one was called off."""


@cache
def _helpers(process: int, count: int) -> SimpleQueue[Call]:
    """What the helpers of this process listen to: a fork inherits the object without its threads.

    A pool of the standard library makes a future for each call, with locks: that takes five times
    as long as all that is needed here.
    """
    calls: SimpleQueue[Call] = SimpleQueue()
    for number in range(count):
        threading.Thread(
            target=_help, args=(calls,), name=f"forerun-lean-{number}", daemon=True
        ).start()
    return calls


def _help(calls: SimpleQueue[Call]) -> None:
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
    """The items of a stage that fall to this thread; ends when all `count` are finished.

    A run is half of a thread's part of what is left.  While an item is multiplied, what lies behind
    it is fetched, and would be fetched for another thread if that took the next; the last runs
    are short, so that nobody waits long.  Whether the pass is over is looked at after a claim: the
    next pass may have changed what this one was about to read.
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
    """Count up, visible to all threads; the number before."""
    signature = types.intp(board, types.intp, types.intp)

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        place = _counter(context, builder, signature, values)
        return builder.atomic_rmw("add", place, values[2], ordering="seq_cst")

    return signature, generate


@intrinsic
def look(context: Any, board: Any, index: Any) -> Any:
    """The number as other threads have left it."""
    signature = types.intp(board, types.intp)

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        place = _counter(context, builder, signature, values)
        return builder.load_atomic(place, ordering="acquire", align=8)

    return signature, generate


@intrinsic
def pause(context: Any) -> Any:
    """Tell the processor that this thread waits, if there is an instruction for that."""

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
    """Let another thread have the core, if the system has a call for that."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return _call_system(context, builder, "sched_yield", [])

    return types.void(), generate


@intrinsic
def sleep(context: Any, microseconds: Any) -> Any:
    """Leave the core idle for so long at least, if the system has a call for that."""

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
        """Until a helper has begun, or none has for about a millisecond."""
        looks = 0 * revision
        while look(board, CLAIMED) == 0 and looks < PATIENCE + NUM_OFFERS:
            pause()
            looks += 1
            if looks > PATIENCE:
                give_way()

    return wait_for_claim


wait_for_claim = build(sources())
