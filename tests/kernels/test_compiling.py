"""Kernels are compiled side by side, by one engine at a time."""

from __future__ import annotations

from threading import Event, Thread
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

from triton.runtime.jit import JITFunction

from forerun.kernels.compiling import compile_together


def test_two_engines_that_warm_up_at_once_leave_triton_as_it_was() -> None:
    """The second begins while the first is at it, and would end after it: what it then put back
    would be the function of the first, under which nothing is launched."""
    run: Any = JITFunction.run
    first_began, second_began, first_ended = Event(), Event(), Event()

    def first() -> None:
        first_began.set()
        second_began.wait(0.3)

    def second() -> None:
        second_began.set()
        first_ended.wait(0.3)

    def compile_first() -> None:
        compile_together([first])
        first_ended.set()

    def compile_second() -> None:
        first_began.wait()
        compile_together([second])

    threads = [Thread(target=compile_first), Thread(target=compile_second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert second_began.is_set()
    assert JITFunction.run is run
