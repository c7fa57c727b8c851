"""Shows progress and answers on a terminal.

Tokens are coloured by their fate. Blue and orange can be distinguished by colour-blind people too;
corrections are also underlined, for terminals without colour. Bonus tokens, the only kind in plain
decoding, have no colour.
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
    """Whether to use colour: standard output is a terminal, and NO_COLOR is not set."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


@contextmanager
def waiting_for(what: str) -> Iterator[None]:
    """Within the block, show on the terminal what is running."""
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
    """Text in the colour of its fate. Spaces stay uncoloured, and escape characters are made
    harmless."""
    tame = text.replace("\033", "␛")
    word = tame.strip()
    if not word or not COLOURS[fate]:
        return tame
    before, _, after = tame.partition(word)
    return f"{before}{COLOURS[fate]}{word}{RESET}{after}"


def legend() -> str:
    """A line that explains each colour in that colour."""
    return " · ".join(painted(meaning, fate) for fate, meaning in MEANINGS.items())


class Screen:
    """Shows the answers one after another; the first unfinished one grows as its pieces arrive."""

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
        """Show pieces as they arrive, until all answers have ended."""
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
        """Print what is new of the current answer, and move on to the next ones when it has
        ended."""
        while self._current < len(self._texts):
            print(self._texts[self._current], end="", flush=True)
            self._texts[self._current] = ""
            if not self._ended[self._current]:
                return
            print(flush=True)
            self._current += 1
            self._announce()

    def _announce(self) -> None:
        """If there are several prompts, print the current one's first line as a heading."""
        if 1 < len(self.prompts) > self._current:
            number, prompt = self._current + 1, self.prompts[self._current]
            title = f"[{number}/{len(self.prompts)}] {prompt.strip().splitlines()[0][:70]}"
            print(title if number == 1 else f"\n{title}", file=sys.stderr, flush=True)
