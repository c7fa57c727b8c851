"""Delays Ctrl-C until the end of a training step."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def held_back() -> Iterator[Callable[[], None]]:
    """Ctrl-C takes effect when the given function is called, so that a step is whole or not at all.

    Pressed a second time it does not wait.
    """
    pressed: list[int] = []

    def remember(number: int, frame: Any) -> None:
        if pressed:
            raise KeyboardInterrupt
        pressed.append(number)

    def let_through() -> None:
        if pressed:
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():  # where no signal arrives
        yield let_through
        return
    before = signal.signal(signal.SIGINT, remember)
    try:
        yield let_through
    finally:
        signal.signal(signal.SIGINT, before)
