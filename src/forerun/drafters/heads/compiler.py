"""Compiles the drafter's pass in a process of its own, while this one compiles the target's.

Numba compiles one function at a time, and the first start on a machine needs two large ones: it
would take twice as long.  The other process leaves its code on disk, where this one finds it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from threading import Lock

import numpy as np
from numba import typeof
from numba.core.compiler_lock import global_compiler_lock

import forerun
from forerun import clock
from forerun.drafters.heads.design import Design
from forerun.lean.crew import new_board
from forerun.lean.forward import forward
from forerun.lean.heads_pass import draft
from forerun.lean.held import type_of_held
from forerun.lean.jit import is_on_disk
from forerun.lean.threads import usual_threads

LIMIT = 300.0  # seconds to wait; then this process compiles it after all
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
        if not _has_begun:
            _has_begun = True
            if usual_threads() > 1 and not is_on_disk(forward) and not is_on_disk(draft):
                _process = _start()


def wait() -> None:
    """Until it is compiled, or could not be.  The clock of rounds stands still."""
    global _process
    if _process is None:
        return
    with global_compiler_lock, _lock:
        if _process is not None:
            clock.start_compiler()
            try:
                _process.wait(LIMIT)
            except subprocess.TimeoutExpired:
                _process.kill()
                _process.wait()
            finally:
                clock.stop_compiler()
                _process = None


def _start() -> subprocess.Popen[bytes] | None:
    if not sys.executable:  # Python inside another program
        return None
    package = Path(forerun.__file__).parent.parent
    paths = os.pathsep.join(filter(None, [str(package), os.environ.get("PYTHONPATH")]))
    try:
        return subprocess.Popen(
            [sys.executable, "-c", f"import {__name__} as compiler; compiler.compile_draft()"],
            env={**os.environ, "PYTHONPATH": paths},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    except OSError:  # this process compiles both
        return None


def compile_draft() -> None:
    """What the other process does.  Arguments of all runners have the types of a small one's."""
    global _has_begun
    _has_begun = True
    from forerun.drafters.heads.lean_runner import LeanRunner

    weights = {name: np.zeros(shape, np.float32) for name, shape in SMALL.shapes.items()}
    runner = LeanRunner(SMALL, weights, np.zeros((1, SMALL.hidden_size), np.float32), 1)
    board = new_board(1, 1)
    draft.compile((typeof(board), type_of_held(runner.some_arguments())))  # type: ignore[attr-defined]
