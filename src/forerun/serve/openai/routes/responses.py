"""The route `POST /v1/responses`: OpenAI's newer format, with text, thoughts and function calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forerun.serve.admission.ask import Ask
from forerun.serve.admission.errors import ApiError
from forerun.serve.openai.fields import Choice, Either, ListOf, Text, Whole
from forerun.serve.openai.formats import flat_format, grammar_of
from forerun.serve.openai.objects import Field, Object, Tagged
from forerun.serve.openai.offer import Offer
from forerun.serve.openai.options import (
    NO_STORE,
    REFUSED,
    check_model,
    common_fields,
    options_of,
    room_for,
    sampling_of,
    speculation_of,
    usual_tokens,
)
from forerun.serve.openai.replies import Words
from forerun.serve.openai.routes.response_reply import ResponseReply
from forerun.serve.openai.templates import (
    MOST_PARTS,
    chat_text,
    template_of,
    text_of,
    worded_tokens,
)
from forerun.serve.openai.thinking import template_options, thinking_fields, thoughts_of
from forerun.serve.openai.toolbox import (
    Toolbox,
    both_format_and_tools,
    flat_tool_fields,
    nested_tools,
)

LOGPROBS = "message.output_text.logprobs"
ENCRYPTED = "reasoning.encrypted_content"
EMPTY = Field(ListOf(Choice(()), 0), "Always empty.")
STATUS = Field(Choice(("completed", "incomplete", "in_progress")), "As an answer had it.")
ID = Field(Text(), "As an answer had it.")
INPUT_TEXT = Object({"text": Field(Text(), required=True)})
OUTPUT_TEXT = Object(
    {"text": Field(Text(), required=True), "annotations": EMPTY, "logprobs": EMPTY}
)
PART = Tagged("type", {"input_text": INPUT_TEXT, "output_text": OUTPUT_TEXT})
TEXTS = Either((Text(), ListOf(PART, MOST_PARTS)), "a text or a list of text parts")


def _parts(kind: str) -> ListOf:
    return ListOf(Tagged("type", {kind: INPUT_TEXT}), MOST_PARTS)


ITEM = Tagged(
    "type",
    {
        "message": Object(
            {
                "role": Field(Choice(("user", "assistant", "system", "developer")), required=True),
                "content": Field(TEXTS, required=True),
                "id": ID,
                "status": STATUS,
            }
        ),
        "function_call": Object(
            {
                "call_id": Field(Text(), required=True),
                "name": Field(Text(), required=True),
                "arguments": Field(Text(), "JSON text.", required=True),
                "id": ID,
                "status": STATUS,
            }
        ),
        "function_call_output": Object(
            {
                "call_id": Field(Text(), required=True),
                "output": Field(TEXTS, "What the function returned.", required=True),
                "id": ID,
                "status": STATUS,
            }
        ),
        "reasoning": Object(
            {
                "summary": Field(_parts("summary_text"), "Not shown to the model."),
                "content": Field(_parts("reasoning_text"), "Thoughts of an answer."),
                "encrypted_content": Field(Choice(()), "Thoughts are not encrypted here."),
                "id": ID,
                "status": STATUS,
            }
        ),
    },
    default="message",
)


class Responses:
    """Reads requests for responses and makes their replies."""

    path = "/v1/responses"
    ends_with_done = False  # its last event says that it is the last

    def __init__(self, offer: Offer) -> None:
        self.offer = offer
        limits = offer.limits
        items = ListOf(ITEM, limits.max_messages, 1)
        self.body = Object(
            {
                "input": Field(
                    Either((Text(least=1), items), "a text or a list of items"),
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
                "include": Field(
                    ListOf(Choice((LOGPROBS, ENCRYPTED)), 2),
                    "What is told beside the text; thoughts are told as they are.",
                ),
                "stream_options": Field(
                    Object({"include_obfuscation": Field(Choice((False,)), default=False)})
                ),
                **flat_tool_fields(offer),
                "reasoning": Field(
                    Object(
                        {"effort": thinking_fields()["reasoning_effort"]},
                        {
                            "summary": "thoughts are told as they are.",
                            "generate_summary": "thoughts are told as they are.",
                        },
                    ),
                    "How much the model thinks first.",
                ),
                "background": Field(Choice((False,)), "Answers are not kept.", False),
                "truncation": Field(Choice(("disabled",)), "Nothing is cut off.", "disabled"),
            },
            {
                **REFUSED,
                "reasoning_effort": "say it as `reasoning.effort`.",
                "previous_response_id": NO_STORE + " Send the conversation in `input`.",
                "conversation": NO_STORE + " Send the conversation in `input`.",
                "prompt": NO_STORE,
                "max_tool_calls": "the functions are the client's own, who may stop calling them.",
            },
        )
        self.words = Words(offer.tokenizer)

    def check(self, body: Mapping[str, Any]) -> dict[str, Any]:
        fields = self.body.check(body)
        check_model(self.offer, fields["model"])
        _num_logprobs(fields)
        return fields

    def read(self, body: Mapping[str, Any]) -> Ask:
        """Turn a body into an `Ask`, with its items as a conversation in the template's format."""
        fields, offer = self.check(body), self.offer
        toolbox = Toolbox.of(offer, nested_tools(fields))
        template = template_of(offer, toolbox.shown)
        effort = (fields["reasoning"] or {}).get("effort")
        text = chat_text(
            offer,
            _messages(fields, reads_thoughts="reasoning_content" in template),
            tools=toolbox.shown,
            where="input",
            options=template_options(template, {"reasoning_effort": effort}, "reasoning.effort"),
        )
        tokens = worded_tokens(offer, text, "input")
        room = room_for(offer, tokens, "input")
        chosen = (fields["text"] or {}).get("format")
        grammar = grammar_of(offer, chosen, "text.format")
        if grammar is not None and toolbox.functions:
            raise both_format_and_tools("text.format")
        sampling = sampling_of(offer, fields, grammar or toolbox.grammar)
        most = fields["max_output_tokens"] or min(room, usual_tokens(offer, room))
        return Ask(
            prompts=[tokens],
            options=options_of(fields, sampling, most, _num_logprobs(fields)),
            speculation=speculation_of(fields),
            is_streamed=fields["stream"],
            includes_usage=True,
            includes_fates=fields["fates"],
            detail={
                "fields": fields,
                "told": {name: body.get(name) for name in ("tools", "tool_choice")},
                "format": (body.get("text") or {}).get("format"),
                "toolbox": toolbox,
                "thoughts": thoughts_of(template_of(offer), text, sampling.grammar),
            },
        )

    def reply(self, ask: Ask, request_id: str, created: int, fingerprint: str) -> ResponseReply:
        return ResponseReply(self.offer, self.words, ask, request_id, created, fingerprint)


def _messages(fields: Mapping[str, Any], *, reads_thoughts: bool) -> list[dict[str, Any]]:
    """The instructions and the input as chat messages.

    Successive thoughts, text and calls of the model become one message. Thoughts are passed on only
    to templates that read them.
    """
    given = fields["input"]
    items = [{"type": "message", "role": "user", "content": given}]
    messages: list[dict[str, Any]] = []
    if fields["instructions"] is not None:
        messages.append({"role": "system", "content": fields["instructions"], "name": None})
    for item in items if isinstance(given, str) else given:
        kind, is_own = item["type"], item.get("role", "assistant") == "assistant"
        if kind == "function_call_output":
            told = {"role": "tool", "tool_call_id": item["call_id"], "content": item["output"]}
            messages.append({"name": None, **told})
        elif not is_own:
            messages.append({"name": None, "role": item["role"], "content": item["content"]})
        else:
            _add_own(messages, item, reads_thoughts=reads_thoughts)
    return messages


def _add_own(
    messages: list[dict[str, Any]], item: Mapping[str, Any], *, reads_thoughts: bool
) -> None:
    """Add one of the model's own items to its last message, or to a new message if it does not fit
    there."""
    last = messages[-1] if messages and messages[-1]["role"] == "assistant" else None
    has_text = last is not None and (last["content"] is not None or "tool_calls" in last)
    if last is None or (has_text and item["type"] != "function_call"):
        last = {"role": "assistant", "content": None, "name": None}
        messages.append(last)
    if item["type"] == "message":
        last["content"] = item["content"]
    elif item["type"] == "function_call":
        function = {"name": item["name"], "arguments": item["arguments"]}
        last.setdefault("tool_calls", []).append({"id": item["call_id"], "function": function})
    elif reads_thoughts and item["content"]:
        last["reasoning_content"] = text_of(item["content"])


def _num_logprobs(fields: Mapping[str, Any]) -> int | None:
    is_included = LOGPROBS in (fields["include"] or ())
    if fields["top_logprobs"] and not is_included:
        message = f"'top_logprobs' has a meaning only where 'include' holds \"{LOGPROBS}\"."
        raise ApiError(message, param="top_logprobs", code="invalid_value")
    return (fields["top_logprobs"] or 0) if is_included else None
