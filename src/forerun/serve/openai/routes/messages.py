"""The route `POST /v1/messages`: Anthropic's format, translated to and from our chat route."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from forerun.engine.results import Generation, Piece
from forerun.serve.admission.ask import Ask
from forerun.serve.admission.errors import ApiError
from forerun.serve.openai.fields import Choice, Either, Flag, Json, ListOf, Text, Whole
from forerun.serve.openai.objects import Field, Object, Tagged
from forerun.serve.openai.offer import Offer
from forerun.serve.openai.options import check_model, common_fields
from forerun.serve.openai.replies import num_cached, speculation
from forerun.serve.openai.routes.chat import Chat
from forerun.serve.openai.routes.chat_reply import ToldChoice
from forerun.serve.openai.templates import MOST_PARTS, template_of, text_of
from forerun.serve.openai.thinking import Thought
from forerun.serve.openai.tools import Call, Told

OURS = ("seed", "speculation", "priority", "timeout", "min_p")
CACHED = {"cache_control": Field(Json(256), "What is kept is not a request's to decide.")}
TEXT_BLOCK = Object({"text": Field(Text(), required=True), **CACHED})
TEXTS = Either(
    (Text(), ListOf(Tagged("type", {"text": TEXT_BLOCK}), MOST_PARTS)),
    "a text or a list of text blocks",
)
RESULT = Object(
    {
        "tool_use_id": Field(Text(), required=True),
        "content": Field(TEXTS),
        "is_error": Field(Flag(), "The content says so itself.", False),
        **CACHED,
    }
)
CALL = Object(
    {
        "id": Field(Text(), required=True),
        "name": Field(Text(), required=True),
        "input": Field(Json(2**20), required=True),
        **CACHED,
    }
)
THOUGHTS = Object({"thinking": Field(Text(), required=True), "signature": Field(Text())})
NO_PICTURES = "a text or a list of blocks of texts, calls and their results"
USER_CONTENT = ListOf(Tagged("type", {"text": TEXT_BLOCK, "tool_result": RESULT}), MOST_PARTS)
OWN_CONTENT = ListOf(
    Tagged("type", {"text": TEXT_BLOCK, "tool_use": CALL, "thinking": THOUGHTS}), MOST_PARTS
)
MESSAGE = Tagged(
    "role",
    {
        role: Object({"content": Field(Either((Text(), blocks), NO_PICTURES), required=True)})
        for role, blocks in (("user", USER_CONTENT), ("assistant", OWN_CONTENT))
    },
)
IS_ALONE = {"disable_parallel_tool_use": Field(Flag(), "One call at most.", False)}
CHOICES = {"auto": "auto", "any": "required", "none": "none"}
EFFORTS = ("low", "medium", "high", "xhigh", "max")
THEIR_NAMES = {
    "enable_thinking": "thinking",
    "reasoning_effort": "output_config.effort",
    "response_format.json_schema": "output_config.format",
}
"""Fields of a chat that stand for fields here, in errors too."""
REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class Messages:
    """Reads Anthropic's requests and makes their replies."""

    path = "/v1/messages"
    ends_with_done = False  # its last event says that it is the last

    def __init__(self, offer: Offer) -> None:
        self.offer = offer
        self._chat = Chat(offer)
        self.body = Object(
            {
                **_conversation(offer),
                "max_tokens": Field(Whole(1, offer.max_tokens), "New tokens.", required=True),
                **_sampling(offer),
            }
        )

    def check(self, body: Mapping[str, Any]) -> dict[str, Any]:
        fields = self.body.check(body)
        check_model(self.offer, fields["model"])
        return fields

    def read(self, body: Mapping[str, Any]) -> Ask:
        fields = self.check(body)
        asked = ("max_tokens", "stream", "temperature", "top_p", "top_k", *OURS)
        chat = {name: fields[name] for name in asked if fields[name] is not None}
        chat |= {"stop": fields["stop_sequences"], **_chat(self.offer, fields)}
        with _their_names():
            return replace(self._chat.read(chat), includes_usage=True)

    def count(self, fields: Mapping[str, Any]) -> int:
        """The number of tokens of a conversation."""
        with _their_names():
            return len(self._chat.tokens(_chat(self.offer, fields)))

    def reply(self, ask: Ask, request_id: str, created: int, fingerprint: str) -> MessagesReply:
        return MessagesReply(self.offer, ask, request_id)


class CountTokens:
    """The route `POST /v1/messages/count_tokens`: counts the tokens of a conversation."""

    path = "/v1/messages/count_tokens"
    method = "POST"

    def __init__(self, offer: Offer) -> None:
        self._messages = Messages(offer)
        self.body = Object(_conversation(offer))

    def answer(self, body: Mapping[str, Any], **_: str) -> dict[str, Any]:
        fields = self.body.check(body)
        check_model(self._messages.offer, fields["model"])
        return {"input_tokens": self._messages.count(fields)}


def _conversation(offer: Offer) -> dict[str, Field]:
    """The fields of a request that hold the conversation and its tools."""
    limits = offer.limits
    tool = Object(
        {
            "name": Field(Text(64, least=1), required=True),
            "description": Field(Text()),
            "input_schema": Field(Json(limits.max_schema_length), required=True),
            "type": Field(Choice(("custom",)), "Tools are the client's own."),
            "eager_input_streaming": Field(Flag(), "A call is streamed when it is complete."),
            **CACHED,
        }
    )
    named = Object({"name": Field(Text(), required=True), **IS_ALONE})
    chosen = {**{name: Object(IS_ALONE) for name in CHOICES}, "tool": named}
    budget = Field(Whole(1, 2**31), "A hint, to which nobody is held.")
    thinking = {
        "enabled": Object({"budget_tokens": budget}),
        "disabled": Object({}),
        "adaptive": Object({}),
    }
    form = Object({"schema": Field(Json(limits.max_schema_length), required=True)})
    output = {
        "effort": Field(Choice(EFFORTS), "How much the model thinks, as `reasoning_effort`."),
        "format": Field(Tagged("type", {"json_schema": form}), "What the text must look like."),
    }
    return {
        "model": Field(Text(), "The id of the model, as /v1/models lists it."),
        "messages": Field(ListOf(MESSAGE, limits.max_messages, 1), "So far.", required=True),
        "system": Field(TEXTS, "What the system says first."),
        "tools": Field(ListOf(tool, limits.max_tools), "Functions that the model may call."),
        "tool_choice": Field(Tagged("type", chosen), "Which is called."),
        "thinking": Field(
            Tagged("type", thinking), "Whether the model thinks first; adaptive leaves it to it."
        ),
        "output_config": Field(Object(output), "Effort and format."),
        **CACHED,
    }


def _sampling(offer: Offer) -> dict[str, Field]:
    """The sampling fields under Anthropic's names, and some fields of ours."""
    common, limits = common_fields(offer), offer.limits
    stop = Text(limits.max_stop_length, least=1)
    return {
        **{name: common[name] for name in ("stream", "temperature", "top_p", *OURS)},
        "top_k": Field(Whole(0, 1 << 31), "Keep so many tokens; 0 keeps all."),
        "stop_sequences": Field(ListOf(stop, limits.max_stops), "Texts that end the answer."),
        "metadata": Field(Object({"user_id": Field(Text(512))}), "A label of the client's own."),
        "service_tier": Field(Choice(("auto", "standard_only")), "There is one tier."),
    }


def _chat(offer: Offer, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The body as that of a chat completion. If the last message is the model's own, it is
    continued."""
    reads_thoughts = "reasoning_content" in template_of(offer)
    messages = [m for message in fields["messages"] for m in _messages(message, reads_thoughts)]
    if fields["system"] is not None:
        messages.insert(0, {"role": "system", "content": text_of(fields["system"])})
    chat: dict[str, Any] = {"messages": messages}
    if messages[-1]["role"] == "assistant" and not messages[-1].get("tool_calls"):
        chat["continue_final_message"] = True
    if fields["tools"]:
        chat["tools"] = [_tool(tool) for tool in fields["tools"]]
    if (choice := fields["tool_choice"]) is not None:
        named = {"type": "function", "function": {"name": choice.get("name")}}
        chat["tool_choice"] = CHOICES.get(choice["type"], named)
        chat["parallel_tool_calls"] = not choice["disable_parallel_tool_use"]
    thinking, output = fields["thinking"], fields["output_config"] or {}
    if thinking is not None and thinking["type"] != "adaptive":
        chat["enable_thinking"] = thinking["type"] == "enabled"
    if (effort := output.get("effort")) is not None:
        chat["reasoning_effort"] = "xhigh" if effort == "max" else effort
    if (form := output.get("format")) is not None:
        inner = {"schema": form["schema"]}
        chat["response_format"] = {"type": "json_schema", "json_schema": inner}
    return chat


@contextmanager
def _their_names() -> Iterator[None]:
    """Within the block, errors about a chat's fields name the fields that they stand for."""
    try:
        yield
    except ApiError as error:
        for ours, theirs in THEIR_NAMES.items():
            if (error.param or "").startswith(ours):
                error.param = theirs + (error.param or "").removeprefix(ours)
                error.message = error.message.replace(ours, theirs)
        raise


def _messages(message: Mapping[str, Any], reads_thoughts: bool) -> Sequence[dict[str, Any]]:
    """A message as chat messages; each tool result becomes a message of its own.

    Earlier thoughts are passed on only to templates that read them.
    """
    role, content = message["role"], message["content"]
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    kinds: dict[str, list[Any]] = {}
    for block in content:
        kinds.setdefault(block["type"], []).append(block)
    results = [
        {
            "role": "tool",
            "tool_call_id": block["tool_use_id"],
            "content": text_of(block["content"]),
        }
        for block in kinds.get("tool_result", ())
    ]
    if role == "user":
        texts = kinds.get("text", [])
        said = [{"role": "user", "content": text_of(texts)}] if texts or not results else []
        return [*results, *said]
    own: dict[str, Any] = {"role": role, "content": text_of(kinds.get("text", []))}
    if calls := kinds.get("tool_use"):
        own["content"] = own["content"] or None
        own["tool_calls"] = [_call(call) for call in calls]
    if reads_thoughts and "thinking" in kinds:
        own["reasoning_content"] = "".join(block["thinking"] for block in kinds["thinking"])
    return [own]


def _call(block: Mapping[str, Any]) -> dict[str, Any]:
    function = {"name": block["name"], "arguments": json.dumps(block["input"], ensure_ascii=False)}
    return {"id": block["id"], "type": "function", "function": function}


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = {"name": tool["name"], "parameters": tool["input_schema"]}
    if tool["description"] is not None:
        function["description"] = tool["description"]
    return {"type": "function", "function": function}


class MessagesReply:
    """Formats an answer as Anthropic's message."""

    def __init__(self, offer: Offer, ask: Ask, request_id: str) -> None:
        self._offer, self._ask, self._request_id = offer, ask, request_id
        self._told = ToldChoice(offer, ask)
        self._block: dict[str, Any] | None = None  # the one that is being sent
        self._num_blocks = 0

    def whole(self, answers: Sequence[Generation]) -> dict[str, Any]:
        """The complete message; consecutive steps of the same kind share a block."""
        (answer,) = answers
        blocks: list[dict[str, Any]] = []
        for step in self._told.read(answer.text or "", final=True):
            block, key, text = self._opened(step, len(blocks))
            if not blocks or key == "input" or blocks[-1]["type"] != block["type"]:
                blocks.append(block)
            blocks[-1][key] = json.loads(text) if key == "input" else blocks[-1][key] + text
        counts = self._counts(answers)
        return {**self._message(counts), "content": blocks, **self._end(answer)}

    def opening(self) -> list[dict[str, Any]]:
        num_prompt = sum(map(len, self._ask.prompts))
        counts = {"input_tokens": num_prompt, "output_tokens": 0}
        nothing: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None}
        return [{"type": "message_start", "message": {**self._message(counts), **nothing}}]

    def piece(self, choice: int, piece: Piece) -> list[dict[str, Any]]:
        """The events for new text. The last block is closed at the end of the answer."""
        is_last = piece.finish_reason is not None
        events = [
            event
            for step in self._told.read(piece.text, final=is_last)
            for event in self._events(step)
        ]
        if piece.finish_reason is not None:
            self._told.finish(piece.finish_reason)  # raises where the answer failed
            events += self._close()
        return events

    def closing(self, answers: Sequence[Generation]) -> list[dict[str, Any]]:
        (answer,) = answers
        counts = self._counts(answers)
        return [
            {"type": "message_delta", "delta": self._end(answer), "usage": counts},
            {"type": "message_stop"},
        ]

    def failure(self, error: ApiError) -> list[dict[str, Any]]:
        return [{"type": "error", "error": {"type": "api_error", "message": error.message}}]

    def _events(self, step: Told | Thought) -> list[dict[str, Any]]:
        """The events of one step. If the open block is of another kind, a new block is opened
        first."""
        block, key, text = self._opened(step, self._num_blocks)
        events: list[dict[str, Any]] = []
        if self._block is None or key == "input" or self._block["type"] != block["type"]:
            events += self._close()
            self._block = block
            start = {"index": self._num_blocks, "content_block": block}
            events.append({"type": "content_block_start", **start})
        delta = {"type": f"{key}_delta", key: text}
        if key == "input":
            delta = {"type": "input_json_delta", "partial_json": text}
        place = {"index": self._num_blocks, "delta": delta}
        return [*events, {"type": "content_block_delta", **place}]

    def _close(self) -> list[dict[str, Any]]:
        if self._block is None:
            return []
        self._block = None
        self._num_blocks += 1
        return [{"type": "content_block_stop", "index": self._num_blocks - 1}]

    def _opened(self, step: Told | Thought, place: int) -> tuple[dict[str, Any], str, str]:
        """An empty block for a step, the name of the field that the step fills, and its text."""
        if isinstance(step, Call):
            name = f"toolu_{self._request_id}_{place}"
            empty = {"type": "tool_use", "id": name, "name": step.name, "input": {}}
            return empty, "input", step.arguments
        if isinstance(step, Thought):
            return {"type": "thinking", "thinking": "", "signature": ""}, "thinking", step.text
        return {"type": "text", "text": ""}, "text", step

    def _message(self, counts: dict[str, Any]) -> dict[str, Any]:
        """The fields of a message that are known from the beginning."""
        return {
            "id": f"msg_{self._request_id}",
            "type": "message",
            "role": "assistant",
            "model": self._offer.name,
            "usage": counts,
        }

    def _counts(self, answers: Sequence[Generation]) -> dict[str, Any]:
        """The token counts; prompt tokens reused from earlier texts are counted separately."""
        cached = num_cached(self._ask, answers)
        return {
            "input_tokens": sum(map(len, self._ask.prompts)) - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": sum(len(answer.tokens) for answer in answers),
            "speculation": speculation(self._offer, self._ask, answers),
        }

    def _end(self, answer: Generation) -> dict[str, Any]:
        """The stop reason, with the stop sequence if there was one."""
        finish = self._told.finish(answer.finish_reason)
        if answer.finish_reason != "stop_string" or finish == "tool_calls":
            return {"stop_reason": REASONS[finish], "stop_sequence": None}
        text = str(self._offer.tokenizer.decode(answer.tokens))
        end = len(answer.text or "")
        places = {stop: text.find(stop, end) for stop in self._ask.options.stop}
        found = sorted((place, stop) for stop, place in places.items() if place >= 0)
        sequence = found[0][1] if found else None
        return {"stop_reason": "stop_sequence", "stop_sequence": sequence}
