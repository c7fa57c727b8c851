"""The parts that the replies of all routes share: token counts, finish reasons, and tokens as
text."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from forerun.engine.results import Fate, Generation, Piece, TokenLogprob
from forerun.engine.text import TextStream, token_bytes
from forerun.serve.admission.ask import Ask
from forerun.serve.admission.errors import ApiError
from forerun.serve.openai.offer import Offer

LEAST_LOGPROB = -9999.0  # what OpenAI writes for a token that cannot come


class Words:
    """Turns tokens into the texts and bytes that replies show. A token may be part of a
    character."""

    def __init__(self, tokenizer: Any) -> None:
        self.bytes = partial(token_bytes, tokenizer)

    def text(self, token: int) -> str:
        """The token as text; for part of a character, OpenAI's notation "bytes:\\xf0\\x9f"."""
        raw = self.bytes(token)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)

    def chat_logprobs(self, tokens: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
        """Log-probabilities in the format of chat completions and responses."""
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
        """Log-probabilities in the format of completions. offsets: where in the text each token
        begins."""
        return {
            "tokens": [self.text(entry.token) for entry in tokens],
            "token_logprobs": [max(entry.logprob, LEAST_LOGPROB) for entry in tokens],
            "top_logprobs": [self._table(entry) for entry in tokens] if num_top else None,
            "text_offset": list(offsets),
        }

    def _table(self, entry: TokenLogprob) -> dict[str, float]:
        """The log-probabilities of the likeliest tokens and of the sampled one, by text. If two
        tokens have the same text, the likelier counts."""
        table: dict[str, float] = {}
        for token, logprob in (*entry.top, (entry.token, entry.logprob)):
            table.setdefault(self.text(token), max(logprob, LEAST_LOGPROB))
        return table


FINISHES = {
    "stop": "stop",
    "stop_string": "stop",
    "length": "length",
    "context": "length",
    "deadline": "length",
}
"""OpenAI's names for our reasons to end a text. Reasons that are not listed are failures."""


def finish_of(reason: str) -> str:
    """OpenAI's finish reason for ours; raises if the answer failed."""
    if reason in FINISHES:
        return FINISHES[reason]
    if reason == "error":
        message = "The model failed while it was answering this request. It can be sent again."
        raise ApiError(message, status=500, kind="server_error", code="generation_failed")
    message = "The answer was cut off by the server. The request can be sent again."
    raise ApiError(message, status=503, kind="server_error", code="aborted")


def usage(offer: Offer, ask: Ask, answers: Sequence[Generation]) -> dict[str, Any]:
    """The token counts of a request, over all its choices; each prompt counts once."""
    num_prompt = sum(map(len, ask.prompts))
    num_new = sum(len(answer.tokens) for answer in answers)
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_new,
        "total_tokens": num_prompt + num_new,
        "prompt_tokens_details": {"cached_tokens": num_cached(ask, answers)},
        "speculation": speculation(offer, ask, answers),
    }


class ChunkUsage:
    """The field `usage` of all chunks but the last: absent, null, or the counts so far."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._num_prompt = sum(map(len, ask.prompts))
        self._num_new = 0

    def count(self, piece: Piece) -> None:
        """Count the tokens of a piece."""
        self._num_new += len(piece.tokens)

    def field(self) -> dict[str, Any]:
        """The field for the next chunk; empty if it is absent."""
        if not self._ask.includes_usage:
            return {}
        if not self._ask.counts_in_chunks:
            return {"usage": None}
        counts = {
            "prompt_tokens": self._num_prompt,
            "completion_tokens": self._num_new,
            "total_tokens": self._num_prompt + self._num_new,
        }
        return {"usage": counts}


def num_cached(ask: Ask, answers: Sequence[Generation]) -> int:
    """How many prompt tokens were reused from earlier texts, counting for each prompt the fewest of
    its samples."""
    reused = [answer.stats.num_reused for answer in answers]
    return sum(min(reused[i : i + ask.n]) for i in range(0, len(reused), ask.n))


def speculation(offer: Offer, ask: Ask, answers: Sequence[Generation]) -> dict[str, Any]:
    """The speculation statistics of a request, over all its choices."""
    rounds = sum(answer.stats.rounds for answer in answers)
    drafted = sum(answer.stats.drafted for answer in answers)
    accepted = sum(answer.stats.accepted for answer in answers)
    emitted = sum(answer.stats.emitted for answer in answers)
    asked = ask.speculation
    return {
        "rounds": rounds,
        "drafted": drafted,
        "accepted": accepted,
        "acceptance_rate": accepted / drafted if drafted else None,
        "tokens_per_round": emitted / rounds if rounds else 0.0,
        "drafter": "none" if ask.options.draft_length == 0 else asked.drafter or offer.drafters[0],
        "rule": asked.rule or offer.rules[0],
    }


class Track:
    """Finds the offset of each token of one choice, and the part of the text that it adds.

    It releases text as the engine does: only when a character is complete and cannot begin a stop
    string. It does nothing unless log-probabilities or fates are asked for.
    """

    def __init__(self, offer: Offer, ask: Ask) -> None:
        self._text = TextStream(offer.tokenizer, ask.options.stop, ask.options.sampling.min_tokens)
        self._is_on = ask.options.logprobs is not None or ask.includes_fates
        self._fates: list[Fate] = []
        self._logprobs: list[TokenLogprob] = []

    def take(
        self,
        tokens: Sequence[int],
        fates: Sequence[Fate],
        logprobs: Sequence[TokenLogprob] | None,
        *,
        final: bool,
    ) -> tuple[list[int], list[dict[str, Any]]]:
        """Take new tokens. Returns their offsets, and their parts: {"text", "fate", "logprob" if
        asked for}."""
        if not self._is_on:
            return [], []
        self._fates += fates
        self._logprobs += logprobs or ()
        offsets = []
        for token in tokens:
            offsets.append(len(self._text.shown))
            self._text.push(token)
        parts = self._text.release_parts(final=final)
        return offsets, [self._part(token, text) for token, text in parts]

    def take_piece(self, piece: Piece) -> tuple[list[int], list[dict[str, Any]]]:
        """Take the tokens of a piece."""
        final = piece.finish_reason is not None
        return self.take(piece.tokens, piece.fates, piece.logprobs, final=final)

    def take_whole(self, answer: Generation) -> tuple[list[int], list[dict[str, Any]]]:
        """Take all tokens of an answer."""
        return self.take(answer.tokens, answer.fates, answer.logprobs, final=True)

    def _part(self, token: int, text: str) -> dict[str, Any]:
        part: dict[str, Any] = {"text": text, "fate": self._fates[token].value}
        if self._logprobs:
            part["logprob"] = max(self._logprobs[token].logprob, LEAST_LOGPROB)
        return part


def offsets_of(tokenizer: Any, tokens: Sequence[int]) -> list[int]:
    """The character offsets at which the tokens of a prompt begin."""
    text, offsets = TextStream(tokenizer), []
    for token in tokens:
        offsets.append(len(text.shown))
        text.push(token)
    return offsets


def told_fates(
    tokens: Sequence[int], fates: Sequence[Fate], parts: list[dict[str, Any]]
) -> dict[str, Any]:
    """The extra fields of a choice if fates are asked for."""
    return {
        "token_ids": list(tokens),
        "fates": [fate.value for fate in fates],
        "tokens": parts,
    }
