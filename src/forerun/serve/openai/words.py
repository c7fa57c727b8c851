"""Tokens as clients see them: texts, bytes and log-probabilities in OpenAI's two shapes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from forerun.engine.results import TokenLogprob
from forerun.engine.token_bytes import token_bytes

LEAST_LOGPROB = -9999.0  # what OpenAI writes for a token that cannot come


class Words:
    """The bytes of single tokens, which need not be whole characters."""

    def __init__(self, tokenizer: Any) -> None:
        self.bytes = partial(token_bytes, tokenizer)

    def text(self, token: int) -> str:
        """The token as text; part of a character as OpenAI writes it: "bytes:\\xf0\\x9f"."""
        raw = self.bytes(token)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)

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
