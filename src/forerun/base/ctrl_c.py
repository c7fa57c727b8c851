"""Lets Ctrl-C end the `forerun` command quietly in its first second, during imports.

The package imports this file first, which installs a signal handler.  In programs that use Forerun
as a library nothing happens.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import PurePath

COMMANDS = ("forerun", "forerun.cli")
"""The module names with which `python -m` runs the command."""


def begin() -> None:
    """Let Ctrl-C end the command without a traceback and with its usual exit status, until `end` is
    called; does nothing in other programs."""
    is_usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_usual and is_command() and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, _leave)


def end() -> None:
    """Restore Python's handling of Ctrl-C."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def is_command() -> bool:
    """Whether this process is the `forerun` command, run as a script or by `python -m`."""
    script = sys.argv[0] if getattr(sys, "argv", None) else ""
    if script != "-m":  # Python sets "-m" while it looks for the module
        return PurePath(script).stem == "forerun"
    return any(name in sys.orig_argv for name in COMMANDS)


def _leave(number: int, _: object) -> None:
    os.write(2, b"\n")
    os._exit(128 + number)


begin()
