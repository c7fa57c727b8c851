"""Single tokens as bytes and as text; a token need not be a whole character."""

from __future__ import annotations

import re
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
    """The byte that each sign of a byte-level vocabulary stands for, as GPT-2 chose them."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    signs = {chr(byte): byte for byte in printable}
    return signs | {chr(256 + place): byte for place, byte in enumerate(others)}
