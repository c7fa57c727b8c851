"""Colours of a terminal, and plain text in a pipe.

Tokens have the colour of their fate.  Blue and orange are told apart by every kind of eyes;
corrections are underlined as well, for terminals and eyes without colour.  Bonus tokens, which
plain decoding is made of, stay plain.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from forerun.engine.results import Fate


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


RESET = "\033[0m"
COLOURS = {
    Fate.ACCEPTED: "\033[38;5;33m",
    Fate.CORRECTION: "\033[4;38;5;172m",
    Fate.BONUS: "",
}
MEANINGS = {
    Fate.ACCEPTED: "accepted from the draft",
    Fate.CORRECTION: "correction of a wrong guess",
    Fate.BONUS: "bonus token of the target",
}


def painted(text: str, fate: Fate) -> str:
    """Text as a terminal should show it: spaces are left alone, and no text is a command."""
    tame = text.replace("\033", "␛")
    word = tame.strip()
    if not word or not COLOURS[fate]:
        return tame
    before, _, after = tame.partition(word)
    return f"{before}{COLOURS[fate]}{word}{RESET}{after}"


def legend() -> str:
    return " · ".join(painted(meaning, fate) for fate, meaning in MEANINGS.items())
