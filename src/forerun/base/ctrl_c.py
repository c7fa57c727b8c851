"""Ctrl-C in the first second of the `forerun` command, which goes by with imports.

Importing this file begins it, and the package imports it first.  In a program that only uses
Forerun nothing happens.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import PurePath

COMMANDS = ("forerun", "forerun.cli")
"""What `python -m` is told."""


def begin() -> None:
    """Until `end`, an interruption ends the command with its exit status and no traceback."""
    is_usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_usual and is_command() and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, _leave)


def end() -> None:
    """From here on whatever runs answers for itself."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def is_command() -> bool:
    """Whether this process is the command, by its script or by `python -m`."""
    script = sys.argv[0] if getattr(sys, "argv", None) else ""
    if script != "-m":  # which it is as long as Python looks for the module
        return PurePath(script).stem == "forerun"
    return any(name in sys.orig_argv for name in COMMANDS)


def _leave(number: int, _: object) -> None:
    os.write(2, b"\n")
    os._exit(128 + number)


begin()
