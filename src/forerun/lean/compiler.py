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

from numba.core.compiler_lock import global_compiler_lock

from forerun.base import clock
from forerun.lean.forward import forward
from forerun.lean.heads_pass import draft
from forerun.lean.jit import is_on_disk
from forerun.lean.threads import usual_threads

LIMIT = 300.0  # seconds to wait; then this process compiles it after all
MARK = "FORERUN_COMPILES"  # in the environment of the other process, which begins nothing itself
PROGRAM = "from forerun.drafters.heads.precompile import compile_draft; compile_draft()"
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
