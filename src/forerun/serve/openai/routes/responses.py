"""`POST /v1/responses`: OpenAI's newer route, for text in and out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forerun.serve.admission.ask import Ask
from forerun.serve.admission.errors import ApiError
from forerun.serve.openai.fields import Choice, Either, Flag, ListOf, Text, Whole
from forerun.serve.openai.formats import flat_format, grammar_of
from forerun.serve.openai.objects import Field, Object, Tagged
from forerun.serve.openai.offer import Offer
from forerun.serve.openai.options import (
    NO_STORE,
    NO_THINKING,
    REFUSED,
    check_model,
    common_fields,
    room_for,
    sampling_of,
    speculation_of,
    stops_of,
    usual_tokens,
)
from forerun.serve.openai.routes.response_reply import ResponseReply
from forerun.serve.openai.templates import MOST_PARTS, chat_tokens
from forerun.serve.openai.words import Words

LOGPROBS = "message.output_text.logprobs"
EMPTY = Field(ListOf(Choice(()), 0), "Always empty.")
PART = Tagged(
    "type",
    {
        "input_text": Object({"text": Field(Text(), required=True)}),
        "output_text": Object(
            {
                "text": Field(Text(), required=True),
                "annotations": EMPTY,
                "logprobs": EMPTY,
            }
        ),
    },
)
ITEM = Tagged(
    "type",
    {
        "message": Object(
            {
                "role": Field(Choice(("user", "assistant", "system", "developer")), required=True),
                "content": Field(
                    Either((Text(), ListOf(PART, MOST_PARTS)), "a text or a list of text parts"),
                    required=True,
                ),
                "id": Field(Text(), "As an answer had it."),
                "status": Field(
                    Choice(("completed", "incomplete", "in_progress")), "As an answer had it."
                ),
            }
        ),
    },
    default="message",
)


class Responses:
    """Reads and words responses."""

    path = "/v1/responses"
    ends_with_done = False  # its last event says that it is the last

    def __init__(self, offer: Offer) -> None:
        self.offer = offer
        limits = offer.limits
        items = ListOf(ITEM, limits.max_messages, 1)
        self.body = Object(
            {
                "input": Field(
                    Either((Text(least=1), items), "a text or a list of messages"),
                    "What the user says, or the conversation.",
                    required=True,
                ),
                **common_fields(offer),
                "instructions": Field(Text(), "A system message before the input."),
                "max_output_tokens": Field(
                    Whole(1, offer.max_tokens),
                    "New tokens; the model's own, or what fits.",
                ),
                "text": Field(
                    Object({"format": Field(flat_format(offer))}, {"verbosity": "no such setting."})
                ),
                "top_logprobs": Field(
                    Whole(0, limits.max_logprobs), f"So many, with include {LOGPROBS}."
                ),
                "include": Field(ListOf(Choice((LOGPROBS,)), 1), "What is told beside the text."),
                "stream_options": Field(
                    Object({"include_obfuscation": Field(Choice((False,)), default=False)})
                ),
                "tools": Field(ListOf(Choice(()), 0), "None: use /v1/chat/completions."),
                "tool_choice": Field(Choice(("none", "auto")), "There are no tools."),
                "parallel_tool_calls": Field(Flag(), "There are no tools.", True),
                "background": Field(Choice((False,)), "Answers are not kept.", False),
                "truncation": Field(Choice(("disabled",)), "Nothing is cut off.", "disabled"),
            },
            {
                **REFUSED,
                **NO_THINKING,
                "previous_response_id": NO_STORE + " Send the conversation in `input`.",
                "conversation": NO_STORE + " Send the conversation in `input`.",
                "prompt": NO_STORE,
                "reasoning": "the model has no such setting.",
                "max_tool_calls": "there are no tools.",
            },
        )
        self.words = Words(offer.tokenizer)

    def check(self, body: Mapping[str, Any]) -> dict[str, Any]:
        fields = self.body.check(body)
        check_model(self.offer, fields["model"])
        _num_logprobs(fields)
        return fields

    def read(self, body: Mapping[str, Any]) -> Ask:
        fields = self.check(body)
        tokens = chat_tokens(self.offer, _messages(fields), where="input")
        room = room_for(self.offer, tokens, "input")
        chosen = (fields["text"] or {}).get("format")
        grammar = grammar_of(self.offer, chosen, "text.format")
        return Ask(
            prompts=[tokens],
            sampling=sampling_of(self.offer, fields, grammar),
            max_new_tokens=fields["max_output_tokens"] or min(room, usual_tokens(self.offer, room)),
            stop=stops_of(fields["stop"]),
            stop_tokens=fields["stop_token_ids"] or (),
            ignore_eos=fields["ignore_eos"],
            logprobs=_num_logprobs(fields),
            speculation=speculation_of(fields["speculation"]),
            priority=fields["priority"],
            timeout=fields["timeout"],
            is_streamed=fields["stream"],
            includes_usage=True,
            includes_fates=fields["fates"],
            detail={"fields": fields, "format": (body.get("text") or {}).get("format")},
        )

    def reply(self, ask: Ask, request_id: str, created: int, fingerprint: str) -> ResponseReply:
        return ResponseReply(self.offer, self.words, ask, request_id, created, fingerprint)


def _messages(fields: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The instructions and the input as chat messages."""
    given = fields["input"]
    messages = [{"role": "user", "content": given}] if isinstance(given, str) else given
    if fields["instructions"] is not None:
        messages = [{"role": "system", "content": fields["instructions"]}, *messages]
    return [{"name": None, **message} for message in messages]


def _num_logprobs(fields: Mapping[str, Any]) -> int | None:
    is_included = LOGPROBS in (fields["include"] or ())
    if fields["top_logprobs"] and not is_included:
        message = f"'top_logprobs' has a meaning only where 'include' holds \"{LOGPROBS}\"."
        raise ApiError(message, param="top_logprobs", code="invalid_value")
    return (fields["top_logprobs"] or 0) if is_included else None
