"""Tokens as clients see them: texts, bytes and log-probabilities in OpenAI's two shapes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from forerun.engine.results import TokenLogprob

LEAST_LOGPROB = -9999.0  # what OpenAI writes for a token that cannot come
NUM_KEPT = 65_536  # tokens whose bytes are remembered


class Words:
    """The bytes of single tokens, which need not be whole characters."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
        self._is_byte_level = "ByteLevel" in repr(decoder)
        self._added = {int(token) for token in getattr(tokenizer, "added_tokens_decoder", {})}
        self.bytes = lru_cache(NUM_KEPT)(self._bytes)

    def text(self, token: int) -> str:
        """The token as text; part of a character as OpenAI writes it: "bytes:\\xf0\\x9f"."""
        raw = self.bytes(token)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)

    def _bytes(self, token: int) -> bytes:
        piece = self._tokenizer.convert_ids_to_tokens(token)
        if piece is None:  # a column of the logits without a token
            return b""
        if token in self._added:
            return str(piece).encode()
        if self._is_byte_level:
            known = _byte_of()
            return b"".join(
                bytes([known[sign]]) if sign in known else sign.encode() for sign in piece
            )
        if code := re.fullmatch(r"<0x([0-9A-F]{2})>", piece):
            return bytes([int(code[1], 16)])
        return str(piece).replace("▁", " ").encode()

    def chat_logprobs(self, tokens: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
        """Log-probabilities as in chat completions and responses."""
        return [
            {
                **self._entry(entry.token, entry.logprob),
                "top_logprobs": [self._entry(token, logprob) for token, logprob in entry.top],
            }
            for entry in tokens
        ]

    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        return {
            "token": self.text(token),
            "logprob": max(logprob, LEAST_LOGPROB),
            "bytes": list(self.bytes(token)),
        }

    def completion_logprobs(
        self, tokens: Sequence[TokenLogprob], offsets: Sequence[int], num_top: int
    ) -> dict[str, Any]:
        """Log-probabilities as in completions; offsets: where in the text each token begins."""
        return {
            "tokens": [self.text(entry.token) for entry in tokens],
            "token_logprobs": [max(entry.logprob, LEAST_LOGPROB) for entry in tokens],
            "top_logprobs": [self._table(entry) for entry in tokens] if num_top else None,
            "text_offset": list(offsets),
        }

    def _table(self, entry: TokenLogprob) -> dict[str, float]:
        """The likeliest tokens and the one that came; of two with one text the likelier."""
        table: dict[str, float] = {}
        for token, logprob in (*entry.top, (entry.token, entry.logprob)):
            table.setdefault(self.text(token), max(logprob, LEAST_LOGPROB))
        return table


@lru_cache(1)
def _byte_of() -> dict[str, int]:
    """The byte that each sign of a byte-level vocabulary stands for, as GPT-2 chose them."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    signs = {chr(byte): byte for byte in printable}
    return signs | {chr(256 + place): byte for place, byte in enumerate(others)}
