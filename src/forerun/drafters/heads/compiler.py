"""Compiles the drafter's pass in a process of its own, while this one compiles the target's.

Numba compiles one function at a time, and the first start on a machine needs two large ones: it
would take twice as long.  The other process leaves its code on disk, where this one finds it.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
from pathlib import Path
from threading import Lock, Thread

import numpy as np
from numba import typeof
from numba.core.compiler_lock import global_compiler_lock

from forerun import clock
from forerun.drafters.heads.design import Design
from forerun.lean.crew import new_board
from forerun.lean.forward import forward
from forerun.lean.heads_pass import draft
from forerun.lean.held import type_of_held
from forerun.lean.jit import is_on_disk
from forerun.lean.threads import usual_threads

LIMIT = 300.0  # seconds to wait; then this process compiles it after all
MARK = "FORERUN_COMPILES"  # in the environment of the other process, which begins nothing itself
PROGRAM = f"from {__name__} import compile_draft; compile_draft()"
SMALL = Design(
    hidden_size=32, num_heads=2, num_kv_heads=1, head_size=16, mlp_size=32, layers=(0,),
    num_tokens=32, rope_theta=1e4, norm_eps=1e-5,
)  # fmt: skip

_lock = Lock()
_has_begun = False
_process: subprocess.Popen[bytes] | None = None


def begin() -> None:
    """Have the drafter's pass compiled meanwhile, if neither pass is on disk; once in a process."""
    global _has_begun, _process
    with _lock:
        if _has_begun or MARK in os.environ:
            return
        _has_begun = True
        if usual_threads() > 1 and not is_on_disk(forward) and not is_on_disk(draft):
            _process = _start()
        if _process is not None:
            atexit.register(_stop, _process)
            Thread(target=_process.wait, daemon=True).start()  # also if nobody else waits


def wait() -> None:
    """Until it is compiled, or could not be.  The clock of rounds stands still."""
    global _process
    if _process is None:
        return
    with global_compiler_lock:
        process, _process = _process, None
        if process is not None:
            clock.start_compiler()
            try:
                process.wait(LIMIT)
            except subprocess.TimeoutExpired:
                pass
            finally:
                _stop(process)
                clock.stop_compiler()


def _start() -> subprocess.Popen[bytes] | None:
    """Nothing, where what runs is no plain Python: it would start the whole program again."""
    is_python = Path(sys.executable or "").name.lower().startswith(("python", "pypy"))
    if not is_python or getattr(sys, "frozen", False):
        return None
    # It looks for modules where this process does, and not where it happens to be started (-P).
    program = f"import sys; sys.path[:] = {[str(path) for path in sys.path]}; {PROGRAM}"
    try:
        return subprocess.Popen(
            [sys.executable, "-P", "-c", program],
            env={**os.environ, MARK: "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    except OSError:  # this process compiles both
        return None


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()
        process.wait()


def _forget() -> None:
    """In a copy of this process: the other one is not its child, to wait for or to stop."""
    global _lock, _process
    _lock, _process = Lock(), None
    atexit.unregister(_stop)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def compile_draft() -> None:
    """What the other process does.  Arguments of all runners have the types of a small one's."""
    from forerun.drafters.heads.lean_runner import LeanRunner

    weights = {name: np.zeros(shape, np.float32) for name, shape in SMALL.shapes.items()}
    runner = LeanRunner(SMALL, weights, np.zeros((1, SMALL.hidden_size), np.float32), 1)
    board = new_board(1, 1)
    draft.compile((typeof(board), type_of_held(runner.some_arguments())))  # type: ignore[attr-defined]
