"""Compiles kernels in several threads before they are launched, if Triton can do that."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Lock, get_ident
from typing import Any

import triton
from triton.runtime.jit import JITFunction

from forerun.base.errors import warn

MOST_THREADS = 16
_LOCK = Lock()
"""Held while a function of Triton is replaced, because two engines may compile at once."""


def compile_together(queues: Sequence[Callable[[], None]]) -> None:
    """Compile the kernels that these functions launch, in threads; nothing is launched.

    A failure costs time only: kernels are compiled one by one when they are launched.
    """
    if not hasattr(triton, "AsyncCompileMode"):  # since Triton 3.5
        return
    with _LOCK:
        _compile_together(queues)


def _compile_together(queues: Sequence[Callable[[], None]]) -> None:
    here, run = get_ident(), JITFunction.run

    def compiled(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        is_ours = get_ident() == here  # other threads go on launching
        return run(self, *args, grid=grid, warmup=warmup or is_ours, **options)

    count = min(MOST_THREADS, os.cpu_count() or 1)
    try:
        with ThreadPoolExecutor(count) as pool, triton.AsyncCompileMode(pool):
            JITFunction.run = compiled
            try:
                for queue in queues:
                    queue()
            finally:
                JITFunction.run = run
    except Exception as error:
        from triton.runtime._async_compile import active_mode  # not in older versions

        active_mode.set(None)  # a failure leaves it as it was, with threads that have ended
        warn(f"Kernels are compiled one by one: {type(error).__name__}: {error}")
