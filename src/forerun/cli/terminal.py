"""What the terminal wants: colour on a screen, plain text in a pipe."""

from __future__ import annotations

import os
import sys


def wants_colour() -> bool:
    """Whether standard output is a terminal whose user has not asked for plain text."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")
