"""Compiles the drafter's pass in a second process, while this one compiles the target's.

Numba compiles one function at a time, and the first start on a machine needs two large ones, so it
would take twice as long.  The second process leaves its code on disk, where this one finds it.
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
from forerun.lean.crew import usual_threads
from forerun.lean.forward import forward
from forerun.lean.heads_pass import draft
from forerun.lean.jit import is_on_disk

LIMIT = 300.0  # seconds to wait for the second process; then this one compiles the code itself
MARK = "FORERUN_COMPILES"  # in the environment of the other process, which begins nothing itself
PROGRAM = "from forerun.drafters.heads.precompile import compile_draft; compile_draft()"
_lock = Lock()
_has_begun = False
_process: subprocess.Popen[bytes] | None = None


def begin() -> None:
    """Start the second process, if neither pass is on disk and this process has not begun before.
    Returns at once."""
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
    """Block until the second process has ended, or for LIMIT seconds.  The clock of rounds stands
    still meanwhile."""
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
    """The second process; None where `sys.executable` is a whole program instead of plain Python,
    because calling that would start the program again."""
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
    """Forget the second process in a fork of this one, which must neither wait for nor stop it."""
    global _lock, _process
    _lock, _process = Lock(), None
    atexit.unregister(_stop)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
