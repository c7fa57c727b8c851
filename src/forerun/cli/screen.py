"""Shows answers on one screen as they arrive."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from io import TextIOWrapper

from forerun.cli.paint import RESET, painted
from forerun.engine.results import Piece


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
        self._announce()
        for piece in pieces:
            self._texts[piece.index] += self._render(piece)
            self._ended[piece.index] = piece.finish_reason is not None
            self._write()

    def break_off(self) -> None:
        """End the current line after an interruption."""
        print(RESET if self.colour else "", flush=True)

    def _render(self, piece: Piece) -> str:
        if not self.colour:
            return piece.text
        return "".join(painted(part, fate) for part, fate in piece.parts)

    def _write(self) -> None:
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
