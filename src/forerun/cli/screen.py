"""What a terminal shows: what is being waited for, and answers as they arrive.

Tokens are coloured by their fate.  Blue and orange are distinct for the colour-blind, too;
corrections are also underlined, for terminals without colour.  Bonus tokens, the only kind in plain
decoding, stay plain.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from threading import Event, Thread

from forerun.engine.results import Fate, Piece


def wants_colour() -> bool:
    """Whether standard output is a terminal whose user has not asked for plain text."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


@contextmanager
def waiting_for(what: str) -> Iterator[None]:
    """Show on a terminal what is running, with its seconds, and erase it afterwards."""
    if not sys.stderr.isatty():
        yield
        return
    began, is_over = time.monotonic(), Event()

    def show() -> None:
        seconds = 0
        while True:
            shown = f"{what} ... {seconds} s" if seconds else f"{what} ..."
            print(shown, end="\r", file=sys.stderr, flush=True)
            if is_over.wait(1):
                return
            seconds = round(time.monotonic() - began)

    thread = Thread(target=show, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        print(" " * len(f"{what} ... 99999 s"), end="\r", file=sys.stderr, flush=True)


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
    """The meaning of each colour, in that colour."""
    return " · ".join(painted(meaning, fate) for fate, meaning in MEANINGS.items())


class Screen:
    """Shows the first unfinished answer as it grows; those after it wait for their turn."""

    def __init__(self, prompts: Sequence[str], *, colour: bool) -> None:
        self.prompts = prompts
        self.colour = colour
        self._texts = [""] * len(prompts)  # what is still to be written
        self._ended = [False] * len(prompts)
        self._current = 0
        if isinstance(
            sys.stdout, TextIOWrapper
        ):  # an unencodable character must not stop the output
            sys.stdout.reconfigure(errors="replace")

    def show(self, pieces: Iterable[Piece]) -> None:
        """Show the pieces as they come, until all answers have ended."""
        self._announce()
        for piece in pieces:
            self._texts[piece.index] += self._render(piece)
            self._ended[piece.index] = piece.finish_reason is not None
            self._write()

    def break_off(self) -> None:
        """End the current line after an interruption."""
        print(RESET if self.colour else "", flush=True)

    def _render(self, piece: Piece) -> str:
        """The text of a piece, coloured by the fates of its tokens."""
        if not self.colour:
            return piece.text
        return "".join(painted(part, fate) for part, fate in piece.parts)

    def _write(self) -> None:
        """Print what is new of the current answer, and of those after it once it has ended."""
        while self._current < len(self._texts):
            print(self._texts[self._current], end="", flush=True)
            self._texts[self._current] = ""
            if not self._ended[self._current]:
                return
            print(flush=True)
            self._current += 1
            self._announce()

    def _announce(self) -> None:
        """Print the first line of the prompt before its answer, if there are several prompts."""
        if 1 < len(self.prompts) > self._current:
            number, prompt = self._current + 1, self.prompts[self._current]
            title = f"[{number}/{len(self.prompts)}] {prompt.strip().splitlines()[0][:70]}"
            print(title if number == 1 else f"\n{title}", file=sys.stderr, flush=True)
