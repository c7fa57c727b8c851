"""Tokens to text as they come, without ever splitting a character or leaking a stop string."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

UNFINISHED = "�"
"""The character that decoding shows while the bytes of a character are incomplete."""


class TextStream:
    """The text of one request's output, growing token by token.

    A token is decoded together with a few before it, because tokenizers join words and bytes
    across tokens.  Text that may turn out to be the start of a stop string is held back.  Stop
    strings that are complete before there are min_tokens tokens are text like any other.
    """

    def __init__(
        self, tokenizer: Any, stop_strings: Sequence[str] = (), min_tokens: int = 0
    ) -> None:
        self.tokenizer = tokenizer
        self.stop_strings = tuple(stop_strings)
        self.min_tokens = min_tokens
        self.text = ""  # everything decoded for certain
        self.stopped_at: int | None = None  # where in text a stop string begins
        self._tokens: list[int] = []
        self._ends: list[int] = []  # where in text the part of each token ends
        self._context = 0  # decoding starts here ...
        self._decoded = 0  # ... and text covers the tokens before this
        self._unsure = ""  # what tokens after these show by now: perhaps a part of a character
        self._released = 0  # how much of text has been handed out

    def push(self, token: int) -> bool:
        """Take one more token; true if it completed a stop string."""
        before = self._decode(self._tokens[self._context : self._decoded])
        after = self._decode([*self._tokens[self._context :], token])
        self._tokens.append(token)  # only now: a token that cannot be decoded is no text
        self._unsure = after[len(before) :]
        if not after.endswith(UNFINISHED) and self._unsure:
            self._take_unsure()
            self._context, self._decoded = self._decoded, len(self._tokens)
        self._ends.append(len(self.text))
        return self.stopped_at is not None

    def release(self, *, final: bool = False) -> str:
        """The text that may be shown by now; everything, once final."""
        return "".join(part for _, part in self.release_parts(final=final))

    def release_parts(self, *, final: bool = False) -> list[tuple[int, str]]:
        """Release text in parts, each with the index of the token that completed it."""
        if final:
            self._finish()
        end = len(self.text) if self.stopped_at is None else self.stopped_at
        if not final and self.stopped_at is None:
            end -= self._held_back()
        parts = []
        for token in range(bisect_right(self._ends, self._released), len(self._ends)):
            if part := self.text[self._released : min(self._ends[token], end)]:
                parts.append((token, part))
                self._released += len(part)
        return parts

    @property
    def shown(self) -> str:
        """The text up to a stop string, if there was one."""
        return self.text if self.stopped_at is None else self.text[: self.stopped_at]

    def _take_unsure(self) -> None:
        """Append the new text and look for stop strings that end in it."""
        known = len(self.text)
        self.text, self._unsure = self.text + self._unsure, ""
        if self.stopped_at is None and len(self._tokens) >= self.min_tokens:
            starts = [max(0, known - len(stop) + 1) for stop in self.stop_strings]
            pairs = zip(self.stop_strings, starts, strict=True)
            places = [self.text.find(stop, start) for stop, start in pairs]
            self.stopped_at = min((place for place in places if place >= 0), default=None)

    def _finish(self) -> None:
        """Show the last tokens too; of a character that the end cuts nothing is shown."""
        self._unsure = self._unsure.rstrip(UNFINISHED)
        self._take_unsure()
        self._context = self._decoded = len(self._tokens)
        if self._ends:
            self._ends[-1] = len(self.text)

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
