"""Output style: colour on a terminal, plain text in a pipe."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


def wants_colour() -> bool:
    """Whether standard output is a terminal whose user has not asked for plain text."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


@contextmanager
def waiting_for(what: str) -> Iterator[None]:
    """Show on a terminal what is running, and erase it afterwards."""
    shown = f"{what} ..." if sys.stderr.isatty() else ""
    print(shown, end="\r" * bool(shown), file=sys.stderr, flush=True)
    try:
        yield
    finally:
        print(" " * len(shown), end="\r" * bool(shown), file=sys.stderr, flush=True)
