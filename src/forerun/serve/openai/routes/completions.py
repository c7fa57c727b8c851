"""The route `POST /v1/completions`: continues one or several texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from forerun.engine.results import Generation, Piece, TokenLogprob
from forerun.serve.admission.ask import Ask
from forerun.serve.admission.errors import ApiError
from forerun.serve.openai.fields import Choice, Either, Flag, ListOf, Text, TokenIds, Whole
from forerun.serve.openai.formats import chat_format, guided_by, guided_fields
from forerun.serve.openai.objects import Field, Object
from forerun.serve.openai.offer import Offer
from forerun.serve.openai.options import (
    NO_THINKING,
    REFUSED,
    check_choices,
    check_model,
    common_fields,
    counts_of,
    options_of,
    room_for,
    sampling_of,
    speculation_of,
    stream_options,
    tokens_of,
    usual_tokens,
)
from forerun.serve.openai.replies import (
    ChunkUsage,
    Track,
    Words,
    finish_of,
    offsets_of,
    told_fates,
    usage,
)

USUAL_TOKENS = 16  # OpenAI's default, where the model has none


class Completions:
    """Reads completion requests and makes their replies."""

    path = "/v1/completions"

    def __init__(self, offer: Offer) -> None:
        self.offer = offer
        limits = offer.limits
        ids = TokenIds(offer.target.vocab_size, offer.max_context, least=1)
        most = limits.max_prompts
        prompt = Either(
            (Text(least=1), ids, ListOf(Text(least=1), most, 1), ListOf(ids, most, 1)),
            "a text, a list of texts, a list of token ids or a list of such lists",
        )
        self.body = Object(
            {
                "prompt": Field(prompt, "Texts or token ids.", required=True),
                **common_fields(offer),
                "max_tokens": Field(
                    Whole(1, offer.max_tokens), "New tokens.", usual_tokens(offer, USUAL_TOKENS)
                ),
                "n": Field(Whole(1, limits.max_choices), "Answers to each prompt.", 1),
                "best_of": Field(Choice((1,)), "Answers are not ranked."),
                "logprobs": Field(
                    Whole(0, limits.max_logprobs), "So many likeliest tokens beside each."
                ),
                "echo": Field(Flag(), "Put the prompt before the answer.", False),
                "stream_options": stream_options(),
                "response_format": Field(chat_format(offer), "What the answer must look like."),
                **guided_fields(offer),
            },
            {**REFUSED, **NO_THINKING, "suffix": "the model does not fill in between texts."},
        )
        self.words = Words(offer.tokenizer)

    def check(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Check the fields of a body, without the tokenizer."""
        fields = self.body.check(body)
        check_model(self.offer, fields["model"])
        n = fields["n"]
        check_choices(self.offer, len(_list_of(fields["prompt"])), n)
        if fields["best_of"] is not None and n > 1:
            message = f"'best_of' must be at least 'n'. Received 1 and {n}; leave it out."
            raise ApiError(message, param="best_of", code="invalid_value")
        return fields

    def read(self, body: Mapping[str, Any]) -> Ask:
        """Turn a body into an `Ask`, with each prompt as token ids."""
        fields = self.check(body)
        prompts = _list_of(fields["prompt"])
        tokens = [tokens_of(self.offer, prompt, "prompt") for prompt in prompts]
        for prompt in tokens:
            room_for(self.offer, prompt, "prompt")
        grammar = guided_by(self.offer, fields)
        sampling = sampling_of(self.offer, fields, grammar)
        return Ask(
            prompts=tokens,
            options=options_of(fields, sampling, fields["max_tokens"], fields["logprobs"]),
            speculation=speculation_of(fields),
            is_streamed=fields["stream"],
            **counts_of(fields),
            includes_fates=fields["fates"],
            scores_prompts=fields["echo"] and fields["logprobs"] is not None,
            detail={"echo": [self._text(prompt) for prompt in prompts] if fields["echo"] else None},
        )

    def _text(self, prompt: str | list[int]) -> str:
        if isinstance(prompt, str):
            return prompt
        return str(self.offer.tokenizer.decode(prompt, skip_special_tokens=True))

    def reply(self, ask: Ask, request_id: str, created: int, fingerprint: str) -> CompletionReply:
        return CompletionReply(self, ask, request_id, created, fingerprint)


class CompletionReply:
    """Formats the choices of a request as a completion, whole or in chunks."""

    def __init__(
        self, route: Completions, ask: Ask, request_id: str, created: int, fingerprint: str
    ) -> None:
        self._offer, self._words, self._ask = route.offer, route.words, ask
        self._head = {
            "id": f"cmpl-{request_id}",
            "object": "text_completion",
            "created": created,
            "model": route.offer.name,
            "system_fingerprint": fingerprint,
        }
        self._tracks = [Track(route.offer, ask) for _ in range(ask.num_choices)]
        self._has_begun = [False] * ask.num_choices
        self._scores: list[dict[str, Any]] = []  # of prompts, where asked for
        self._usage = ChunkUsage(ask)

    def score(self, prompts: Sequence[Sequence[TokenLogprob]]) -> None:
        """Receive the log-probabilities of each prompt's tokens except the first."""
        for tokens, logprobs in zip(self._ask.prompts, prompts, strict=True):
            offsets = offsets_of(self._offer.tokenizer, tokens)
            num_top = self._ask.options.logprobs or 0
            told = self._words.completion_logprobs(logprobs, offsets[1:], num_top)
            first = {"tokens": [self._words.text(tokens[0])], "text_offset": [0]}
            unknown = {"token_logprobs": [None], "top_logprobs": [None]}
            self._scores.append(_joined(first | unknown, told))

    def whole(self, answers: Sequence[Generation]) -> dict[str, Any]:
        """All choices with their texts, in the order of the prompts."""
        choices = []
        for index, answer in enumerate(answers):
            offsets, parts = self._tracks[index].take_whole(answer)
            told = self._logprobs(answer.logprobs, offsets, index)
            choice = self._choice(index, answer.text or "", told, answer.finish_reason)
            if self._ask.includes_fates:
                choice |= told_fates(answer.tokens, answer.fates, parts)
            choices.append(choice)
        return {**self._head, "choices": choices, "usage": usage(self._offer, self._ask, answers)}

    def opening(self) -> list[dict[str, Any]]:
        return []

    def piece(self, choice: int, piece: Piece) -> list[dict[str, Any]]:
        """The chunk for new text; none if there is nothing to send."""
        ask = self._ask
        self._usage.count(piece)
        offsets, parts = self._tracks[choice].take_piece(piece)
        has_tokens = bool(piece.tokens) and (ask.options.logprobs is not None or ask.includes_fates)
        if not piece.text and piece.finish_reason is None and not has_tokens:
            return []
        logprobs = self._logprobs(piece.logprobs, offsets, choice)
        told = self._choice(choice, piece.text, logprobs, piece.finish_reason)
        if ask.includes_fates:
            told |= told_fates(piece.tokens, piece.fates, parts)
        return [{**self._head, "choices": [told], **self._usage.field()}]

    def closing(self, answers: Sequence[Generation]) -> list[dict[str, Any]]:
        if not self._ask.includes_usage:
            return []
        return [{**self._head, "choices": [], "usage": usage(self._offer, self._ask, answers)}]

    def _choice(
        self, index: int, text: str, logprobs: dict[str, Any] | None, reason: str | None
    ) -> dict[str, Any]:
        """One choice of a response or chunk. With `echo`, its first text begins with the prompt."""
        finish = None if reason is None else finish_of(reason)
        echo = self._ask.detail["echo"]
        if echo is not None and not self._has_begun[index]:
            prompt = index // self._ask.n
            text = echo[prompt] + text
            if self._scores and logprobs is not None:
                logprobs = _joined(self._scores[prompt], logprobs)
        self._has_begun[index] = True
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}

    def _logprobs(
        self, logprobs: Sequence[TokenLogprob] | None, offsets: list[int], index: int
    ) -> dict[str, Any] | None:
        """Log-probabilities in this route's format; offsets count an echoed prompt."""
        if self._ask.options.logprobs is None:
            return None
        echo = self._ask.detail["echo"]
        start = 0 if echo is None else len(echo[index // self._ask.n])
        places = [start + offset for offset in offsets]
        return self._words.completion_logprobs(logprobs or (), places, self._ask.options.logprobs)


def _joined(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """The log-probabilities of two successive parts of a text; a field that is None in the second
    stays None."""
    return {name: None if part is None else [*first[name], *part] for name, part in second.items()}


def _list_of(prompt: Any) -> list[Any]:
    """The prompts as a list, even if there is only one."""
    is_one = isinstance(prompt, str) or isinstance(prompt[0], int)
    return [prompt] if is_one else prompt
