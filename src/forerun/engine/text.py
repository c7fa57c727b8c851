"""Tokens to text as they come, without ever splitting a character or leaking a stop string."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

UNFINISHED = "�"
"""What decoding shows while the bytes of a character are still incomplete."""


class TextStream:
    """The text of one request's output, growing token by token.

    A token is decoded together with a few before it, because tokenizers join words and bytes
    across tokens.  Text that may turn out to be the start of a stop string is held back.
    """

    def __init__(self, tokenizer: Any, stop_strings: Sequence[str] = ()) -> None:
        self.tokenizer = tokenizer
        self.stop_strings = tuple(stop_strings)
        self.text = ""  # everything decoded for certain
        self.stopped_at: int | None = None  # where in text a stop string begins
        self._tokens: list[int] = []
        self._context = 0  # decoding starts here ...
        self._decoded = 0  # ... and text covers the tokens before this
        self._released = 0  # how much of text has been handed out

    def push(self, token: int) -> bool:
        """Take one more token; true if it completed a stop string."""
        self._tokens.append(token)
        before = self._decode(self._tokens[self._context : self._decoded])
        after = self._decode(self._tokens[self._context :])
        if after.endswith(UNFINISHED) or len(after) <= len(before):
            return False
        self._extend(after[len(before) :])
        self._context, self._decoded = self._decoded, len(self._tokens)
        return self.stopped_at is not None

    def release(self, *, final: bool = False) -> str:
        """The text that may be shown by now; everything, once final."""
        if final:
            self._finish()
        end = len(self.text) if self.stopped_at is None else self.stopped_at
        if not final and self.stopped_at is None:
            end -= self._held_back()
        piece = self.text[self._released : max(end, self._released)]
        self._released += len(piece)
        return piece

    @property
    def shown(self) -> str:
        """The text up to a stop string, if there was one."""
        return self.text if self.stopped_at is None else self.text[: self.stopped_at]

    def _extend(self, new: str) -> None:
        """Append text and look for stop strings that end in it."""
        longest = max((len(stop) for stop in self.stop_strings), default=0)
        start = max(0, len(self.text) - longest + 1)
        self.text += new
        if self.stopped_at is None:
            found = [self.text.find(stop, start) for stop in self.stop_strings]
            self.stopped_at = min((place for place in found if place >= 0), default=None)

    def _finish(self) -> None:
        """Decode what was waiting for more bytes: it will not get them."""
        before = self._decode(self._tokens[self._context : self._decoded])
        after = self._decode(self._tokens[self._context :])
        self._extend(after[len(before) :])
        self._context = self._decoded = len(self._tokens)

    def _held_back(self) -> int:
        """Length of the longest end of the text that begins a stop string."""
        most = max((len(stop) for stop in self.stop_strings), default=1) - 1
        for size in range(min(most, len(self.text)), 0, -1):
            tail = self.text[-size:]
            if any(stop.startswith(tail) for stop in self.stop_strings):
                return size
        return 0

    def _decode(self, tokens: list[int]) -> str:
        return str(self.tokenizer.decode(tokens, skip_special_tokens=True)) if tokens else ""
