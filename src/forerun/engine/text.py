"""Turns tokens into text as they arrive; never splits a character or shows part of a stop
string."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary


@dataclass(frozen=True)
class _Vocabulary:
    """A tokenizer's spelling of its tokens, and a cache of tokens' bytes."""

    is_byte_level: bool
    added: frozenset[int]  # special tokens and the like, written as they are
    known: dict[int, bytes] = field(default_factory=dict)


_vocabularies: WeakKeyDictionary[Any, _Vocabulary] = WeakKeyDictionary()


def token_bytes(tokenizer: Any, token: int) -> bytes:
    """The bytes that a token stands for."""
    vocabulary = _vocabularies.get(tokenizer)
    if vocabulary is None:
        decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
        added = frozenset(int(token) for token in getattr(tokenizer, "added_tokens_decoder", {}))
        vocabulary = _Vocabulary("ByteLevel" in repr(decoder), added)
        _vocabularies[tokenizer] = vocabulary
    if token not in vocabulary.known:
        piece = tokenizer.convert_ids_to_tokens(token)
        vocabulary.known[token] = _bytes_of(vocabulary, token, piece)
    return vocabulary.known[token]


def token_text(tokenizer: Any, token: int) -> str:
    """A token as text; a part of a character is shown as "�"."""
    if not hasattr(tokenizer, "convert_ids_to_tokens"):
        return str(tokenizer.decode([token]))
    return token_bytes(tokenizer, token).decode(errors="replace")


def _bytes_of(vocabulary: _Vocabulary, token: int, piece: str | None) -> bytes:
    if piece is None:  # a column of the logits without a token
        return b""
    if token in vocabulary.added:
        return piece.encode()
    if vocabulary.is_byte_level:
        known = _byte_of()
        return b"".join(bytes([known[sign]]) if sign in known else sign.encode() for sign in piece)
    if code := re.fullmatch(r"<0x([0-9A-F]{2})>", piece):
        return bytes([int(code[1], 16)])
    return piece.replace("▁", " ").encode()


@lru_cache(1)
def _byte_of() -> dict[str, int]:
    """The byte that each character of a byte-level vocabulary stands for, as GPT-2 defined them."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    signs = {chr(byte): byte for byte in printable}
    return signs | {chr(256 + place): byte for place, byte in enumerate(others)}


UNFINISHED = "�"
"""The character that decoding shows while the bytes of a character are incomplete."""


class TextStream:
    """The text of one request, which grows token by token.

    A token is decoded together with a few before it, because tokenizers join words and bytes across
    tokens. Text that may turn out to be the start of a stop string is held back. Stop strings that
    are complete before there are min_tokens tokens count as ordinary text.
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
        self._unsure = ""  # text of the tokens after these; it may end inside a character
        self._released = 0  # how much of text has been handed out

    def push(self, token: int) -> bool:
        """Take one more token; returns whether it completed a stop string."""
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
        """The text that can be shown now; with `final`, all of it."""
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
        """The text, cut before the stop string if there was one."""
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
        """Release the last tokens too, without the bytes of an incomplete character."""
        self._unsure = self._unsure.rstrip(UNFINISHED)
        self._take_unsure()
        self._context = self._decoded = len(self._tokens)
        if self._ends:
            self._ends[-1] = len(self.text)

    def _held_back(self) -> int:
        """The length of the longest suffix of the text with which a stop string could begin."""
        most = max((len(stop) for stop in self.stop_strings), default=1) - 1
        for size in range(min(most, len(self.text)), 0, -1):
            tail = self.text[-size:]
            if any(stop.startswith(tail) for stop in self.stop_strings):
                return size
        return 0

    def _decode(self, tokens: list[int]) -> str:
        return str(self.tokenizer.decode(tokens, skip_special_tokens=True)) if tokens else ""
