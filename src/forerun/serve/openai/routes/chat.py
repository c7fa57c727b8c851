"""The route `POST /v1/chat/completions`: continues a conversation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forerun.serve.admission.ask import Ask
from forerun.serve.admission.errors import ApiError
from forerun.serve.openai.fields import Choice, Flag, ListOf, Whole
from forerun.serve.openai.formats import chat_format, guided_by, guided_fields
from forerun.serve.openai.objects import Field, Object
from forerun.serve.openai.offer import Offer
from forerun.serve.openai.options import (
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
    usual_tokens,
)
from forerun.serve.openai.replies import Words
from forerun.serve.openai.routes.chat_reply import ChatReply
from forerun.serve.openai.templates import MESSAGE, chat_text, template_of, text_of, worded_tokens
from forerun.serve.openai.thinking import template_options, thinking_fields, thoughts_of
from forerun.serve.openai.toolbox import Toolbox, both_format_and_tools, tool_fields


class Chat:
    """Reads chat requests and makes their replies."""

    path = "/v1/chat/completions"

    def __init__(self, offer: Offer) -> None:
        self.offer = offer
        limits = offer.limits
        messages = ListOf(MESSAGE, limits.max_messages, 1)
        self.body = Object(
            {
                "messages": Field(messages, "The conversation so far.", required=True),
                **common_fields(offer),
                "max_tokens": Field(Whole(1, offer.max_tokens), "New tokens, by its older name."),
                "max_completion_tokens": Field(
                    Whole(1, offer.max_tokens),
                    "New tokens; the model's own, or what fits.",
                ),
                "n": Field(Whole(1, limits.max_choices), "Answers.", 1),
                "logprobs": Field(Flag(), "Tell the log-probability of each token.", False),
                "top_logprobs": Field(
                    Whole(0, limits.max_logprobs), "So many likeliest tokens beside each."
                ),
                "stream_options": stream_options(),
                "response_format": Field(chat_format(offer), "What the answer must look like."),
                **guided_fields(offer),
                **tool_fields(offer),
                **thinking_fields(),
                "add_generation_prompt": Field(
                    Flag(), "Words that begin the answer; true unless the last message goes on."
                ),
                "continue_final_message": Field(
                    Flag(), "The last message is the answer's beginning, and goes on.", False
                ),
                "modalities": Field(ListOf(Choice(("text",)), 1, 1), "Text."),
            },
            {
                **REFUSED,
                "audio": "the model reads and writes text.",
                "web_search_options": "nothing is searched here.",
                "functions": "use `tools`.",
                "function_call": "use `tool_choice`.",
            },
        )
        self.words = Words(offer.tokenizer)

    def check(self, body: Mapping[str, Any]) -> dict[str, Any]:
        fields = self.body.check(body)
        check_model(self.offer, fields["model"])
        check_choices(self.offer, 1, fields["n"])
        _max_tokens(fields)
        _num_logprobs(fields)
        return fields

    def read(self, body: Mapping[str, Any]) -> Ask:
        """Turn a body into an `Ask`, with the conversation as text in the template's format."""
        fields = self.check(body)
        toolbox = Toolbox.of(self.offer, fields)
        text = self._text(fields, toolbox)
        tokens = worded_tokens(self.offer, text)
        room = room_for(self.offer, tokens, "messages")
        grammar = guided_by(self.offer, fields)
        if grammar is not None and toolbox.functions:
            raise both_format_and_tools("response_format")
        sampling = sampling_of(self.offer, fields, grammar or toolbox.grammar)
        begun = fields["messages"][-1]["content"] if fields["continue_final_message"] else None
        thoughts = thoughts_of(template_of(self.offer), text, sampling.grammar, text_of(begun))
        most = _max_tokens(fields) or min(room, usual_tokens(self.offer, room))
        return Ask(
            prompts=[tokens],
            options=options_of(fields, sampling, most, _num_logprobs(fields)),
            speculation=speculation_of(fields),
            is_streamed=fields["stream"],
            **counts_of(fields),
            includes_fates=fields["fates"],
            detail={"toolbox": toolbox, "thoughts": thoughts},
        )

    def tokens(self, body: Mapping[str, Any]) -> list[int]:
        """The token ids of the conversation in a body."""
        fields = self.check(body)
        return worded_tokens(self.offer, self._text(fields, Toolbox.of(self.offer, fields)))

    def _text(self, fields: Mapping[str, Any], toolbox: Toolbox) -> str:
        """The conversation in the template's format, up to where the model continues."""
        continues, begins = fields["continue_final_message"], fields["add_generation_prompt"]
        if continues and (begins or fields["messages"][-1]["role"] != "assistant"):
            message = (
                "'continue_final_message' needs a last message of the role assistant, and no "
                "'add_generation_prompt' beside it."
            )
            raise ApiError(message, param="continue_final_message", code="invalid_value")
        options = template_options(template_of(self.offer, toolbox.shown), fields)
        if continues:
            options["continue_final_message"] = True
        return chat_text(
            self.offer,
            fields["messages"],
            tools=toolbox.shown,
            begins_answer=not continues and begins is not False,
            options=options,
        )

    def reply(self, ask: Ask, request_id: str, created: int, fingerprint: str) -> ChatReply:
        return ChatReply(self.offer, self.words, ask, request_id, created, fingerprint)


def _max_tokens(fields: Mapping[str, Any]) -> int | None:
    """The limit on new tokens, under its older or newer name; if both are given they must agree."""
    old, new = fields["max_tokens"], fields["max_completion_tokens"]
    if old is not None and new is not None and old != new:
        message = (
            f"'max_tokens' is the older name of 'max_completion_tokens', and they differ. "
            f"Received {old} and {new}. Leave out one of the two."
        )
        raise ApiError(message, param="max_tokens", code="invalid_value")
    limit: int | None = old if new is None else new
    return limit


def _num_logprobs(fields: Mapping[str, Any]) -> int | None:
    if fields["top_logprobs"] is not None and not fields["logprobs"]:
        message = "'top_logprobs' has a meaning only where 'logprobs' is true."
        raise ApiError(message, param="top_logprobs", code="invalid_value")
    return (fields["top_logprobs"] or 0) if fields["logprobs"] else None
