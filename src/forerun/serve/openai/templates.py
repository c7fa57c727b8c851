"""Checks chat messages and renders them with the model's own chat template."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from forerun.serve.admission.errors import ApiError
from forerun.serve.openai.fields import Choice, Either, ListOf, Text, safe, wrong_value
from forerun.serve.openai.objects import Field, Object, Tagged
from forerun.serve.openai.offer import Offer
from forerun.serve.openai.options import check_length, tokens_of

TEXT_PART = Tagged("type", {"text": Object({"text": Field(Text(), required=True)})})
MOST_PARTS = 1_024  # of one message
MOST_CALLS = 128  # in one message
CONTENT = Either((Text(), ListOf(TEXT_PART, MOST_PARTS)), "a text or a list of text parts")
NO_AUDIO = "the model reads and writes text."
OLD_CALLS = "use `tools` and `tool_calls`."

CALL = Object(
    {
        "id": Field(Text(), required=True),
        "type": Field(Choice(("function",)), default="function"),
        "function": Field(
            Object(
                {
                    "name": Field(Text(), required=True),
                    "arguments": Field(Text(), "JSON text.", required=True),
                }
            ),
            required=True,
        ),
    }
)

_SPOKEN = {"content": Field(CONTENT, required=True), "name": Field(Text())}
MESSAGE = Tagged(
    "role",
    {
        "system": Object(_SPOKEN),
        "developer": Object(_SPOKEN),
        "user": Object(_SPOKEN),
        "assistant": Object(
            {
                "content": Field(CONTENT),
                "name": Field(Text()),
                "tool_calls": Field(ListOf(CALL, MOST_CALLS)),
                "reasoning_content": Field(Text(), "As an answer had it."),
                "annotations": Field(ListOf(Text(), 0), "OpenAI's own answers have an empty list."),
            },
            {
                "refusal": "a message has a content.",
                "audio": NO_AUDIO,
                "function_call": OLD_CALLS,
            },
        ),
        "tool": Object({**_SPOKEN, "tool_call_id": Field(Text(), required=True)}),
    },
)


def text_of(content: str | Sequence[Mapping[str, Any]] | None) -> str:
    """The text of a message's content; text parts are joined without separators."""
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part["text"] for part in content)


def template_of(offer: Offer, tools: Any = None) -> str:
    """The model's chat template."""
    try:
        return str(offer.tokenizer.get_chat_template(tools=tools))
    except ValueError as error:  # there is none, or none without a name
        message = f"The model '{offer.name}' has no chat template. Use /v1/completions."
        raise ApiError(message, param="messages", code="unsupported_value") from error


def chat_tokens(
    offer: Offer,
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    where: str = "messages",
    begins_answer: bool = True,
) -> list[int]:
    """The token ids of a conversation, up to where the model's answer begins."""
    text = chat_text(offer, messages, tools=tools, where=where, begins_answer=begins_answer)
    return worded_tokens(offer, text, where)


def worded_tokens(offer: Offer, text: str, where: str = "messages") -> list[int]:
    """The token ids of a rendered conversation, to which the template has already added special
    tokens."""
    check_length(offer, text, where)
    ids = offer.tokenizer.encode(text, add_special_tokens=False)
    return tokens_of(offer, ids, where)


def chat_text(
    offer: Offer,
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    where: str = "messages",
    begins_answer: bool = True,
    options: Mapping[str, Any] | None = None,
) -> str:
    """A conversation rendered by the model's template.

    options: variables of the template, and further arguments of `apply_chat_template`.
    """
    template = template_of(offer, tools)
    _check_calls(messages, where)
    worded = [_worded(m, template, f"{where}[{i}]") for i, m in enumerate(messages)]
    try:
        return str(
            offer.tokenizer.apply_chat_template(
                worded,
                tools=list(tools) if tools else None,
                tokenize=False,
                add_generation_prompt=begins_answer,
                **(options or {}),
            )
        )
    except Exception as error:  # a template is a program, and refuses by raising
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        message = f"The model's chat template refuses these messages: {reason}"
        raise ApiError(message, param=where, code="invalid_value") from error


def _worded(message: Mapping[str, Any], template: str, where: str) -> dict[str, Any]:
    """A message in the form that templates expect. Fields that the template does not read are
    refused."""
    role = message["role"]
    if role == "developer" and "developer" not in template:
        role = "system"
    worded = {"role": role, "content": text_of(message["content"])}
    is_read = re.search(r"message(\.name\b|\[['\"]name['\"]\])", template) is not None
    if message["name"] is not None and is_read:
        worded["name"] = message["name"]
    elif message["name"] is not None and role != "tool":  # whose name is that of its call
        raise _unread(f"{where}.name")
    if (thoughts := message.get("reasoning_content")) is not None:
        if "reasoning_content" in template:
            worded["reasoning_content"] = thoughts
        elif "</think>" not in template:  # one that knows thoughts leaves earlier ones out
            raise _unread(f"{where}.reasoning_content")
    if calls := message.get("tool_calls"):
        if "tool_calls" not in template:
            raise _unread(f"{where}.tool_calls")
        worded["tool_calls"] = [
            _call(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(calls)
        ]
    elif role == "assistant" and message["content"] is None and thoughts is None:
        text = f"'{where}' has neither a content nor tool calls."
        raise ApiError(text, param=f"{where}.content", code="missing_required_parameter")
    if role == "tool":
        worded["tool_call_id"] = message["tool_call_id"]
    return worded


def _call(call: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A tool call with its arguments as an object, which templates expect."""
    function = call["function"]
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except ValueError:
        arguments = None
    if not isinstance(arguments, Mapping):
        message = f"'{where}.function.arguments' must be the JSON text of an object."
        raise ApiError(message, param=f"{where}.function.arguments", code="invalid_value")
    inner = {"name": function["name"], "arguments": arguments}
    return {"id": call["id"], "type": "function", "function": inner}


def _check_calls(messages: Sequence[Mapping[str, Any]], where: str) -> None:
    """Refuse a tool message that answers no earlier call, or has the wrong name."""
    made: dict[str, str] = {}
    for place, message in enumerate(messages):
        for call in message.get("tool_calls") or ():
            made[call["id"]] = call["function"]["name"]
        if message["role"] != "tool":
            continue
        called = made.get(message["tool_call_id"])
        if called is None:
            name = f"{where}[{place}].tool_call_id"
            text = f"'{name}' names no call of an earlier message. Send that message along."
            raise ApiError(text, param=name, code="invalid_value")
        if message["name"] not in (None, called):
            limit = f'"{safe(called)}", the function of its call, or left out'
            raise wrong_value(message["name"], f"{where}[{place}].name", limit)


def _unread(where: str) -> ApiError:
    message = f"'{where}' cannot be honoured: the model's chat template does not read it."
    return ApiError(message, param=where, code="unsupported_parameter")
