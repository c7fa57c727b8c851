"""Anthropic's messages: the chat that they say, blocks and events."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from serving import run
from talking import (
    CHAT,
    HERMES,
    MESSAGES,
    Sayer,
    answer_to,
    generations,
    offer_of,
    refusal,
    talker,
    talking,
)
from test_thinking import QWEN, SAID, TOOLS

import forerun as fr
from forerun.serve.admission.errors import ApiError
from forerun.serve.openai.routes.messages import CountTokens, Messages

PATH = "/v1/messages"
BODY: dict[str, Any] = {"messages": MESSAGES, "max_tokens": 24, "seed": 7, "temperature": 0.8}
SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
TOOL = {"name": "f", "description": "F.", "input_schema": SCHEMA}
CALL = '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>'


def assembled(events: list[Any]) -> dict[str, Any]:
    """The message that a client makes of the events, after a look at their order."""
    assert events[0]["type"] == "message_start"
    assert [event["type"] for event in events[-2:]] == ["message_delta", "message_stop"]
    message, is_open = dict(events[0]["message"]), False
    message["content"] = []
    for event in events[1:-2]:
        kind = event["type"].removeprefix("content_block_")
        if kind == "start":
            assert not is_open
            assert event["index"] == len(message["content"])
            message["content"].append({**event["content_block"]})
        elif kind == "delta":
            delta, block = event["delta"], message["content"][event["index"]]
            key = delta["type"].removesuffix("_delta")
            if key == "input_json":
                block["input"] = json.loads(delta["partial_json"])
            else:
                block[key] += delta[key]
        assert kind in ("start", "delta", "stop")
        is_open = kind != "stop"
    assert not is_open
    return {**message, **events[-2]["delta"], "usage": events[-2]["usage"]}


def both(body: dict[str, Any], target: Any = None) -> dict[str, Any]:
    """The answer, which is the same whole and streamed but for names and counts of the cache."""
    whole, events = answer_to(PATH, body, {**body, "stream": True}, target=target)
    made = assembled([event for event in events if event != "[DONE]"])
    kept = ("type", "role", "model", "stop_reason", "stop_sequence")
    assert [made[name] for name in kept] == [whole[name] for name in kept]
    for one, other in zip(whole["content"], made["content"], strict=True):
        assert {**one, "id": 0} == {**other, "id": 0}
    assert made["usage"]["output_tokens"] == whole["usage"]["output_tokens"]
    assert isinstance(whole, dict)
    return whole


def test_the_text_is_that_of_generate_and_of_a_chat() -> None:
    whole = both(BODY)
    sampling = fr.Sampling(temperature=0.8, seed=7)
    (expected,) = generations(talker(), MESSAGES, sampling=sampling, max_new_tokens=24)
    assert whole["content"] == [{"type": "text", "text": expected.text}]
    assert whole["stop_reason"] == ("max_tokens" if len(expected.tokens) == 24 else "end_turn")
    chat = answer_to(CHAT, BODY)["choices"][0]["message"]["content"]
    assert chat == expected.text
    usage = whole["usage"]
    num_prompt = usage["input_tokens"] + usage["cache_read_input_tokens"]
    assert num_prompt == len(expected.prompt_tokens)


def test_why_an_answer_ended() -> None:
    target = Sayer("one two three four")
    assert both({**BODY, "temperature": 0, "max_tokens": 60}, target)["stop_reason"] == "end_turn"
    assert both({**BODY, "temperature": 0, "max_tokens": 2}, target)["stop_reason"] == "max_tokens"
    body = {**BODY, "temperature": 0, "stop_sequences": ["zz", " three"]}
    stopped = both(body, target)
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", " three")
    assert stopped["content"][0]["text"] == "one two"


def test_calls_and_their_results() -> None:
    body = {**BODY, "temperature": 0, "max_tokens": 99, "tools": [TOOL]}
    whole = both(body, Sayer(f"I call.{CALL}", HERMES))
    text, call = whole["content"]
    assert text == {"type": "text", "text": "I call."}
    assert (call["type"], call["name"], call["input"]) == ("tool_use", "f", {"x": 1})
    assert whole["stop_reason"] == "tool_use"
    result = {"type": "tool_result", "tool_use_id": call["id"], "content": "42"}
    asked = {"role": "user", "content": [result, {"type": "text", "text": "And now?"}]}
    answered = [*MESSAGES, {"role": "assistant", "content": whole["content"]}, asked]
    ask = Messages(offer_of(talker(HERMES))).read({**body, "messages": answered})
    worded = talker().tokenizer.decode(ask.prompts[0])
    assert 'f {"x": 1}' in worded
    assert "<tool>42" in worded
    assert "<user>And now?" in worded


def test_several_calls_and_one_that_is_forced() -> None:
    body = {**BODY, "temperature": 0, "max_tokens": 200, "tools": [TOOL]}
    both_calls = both(body, Sayer(f"{CALL}\n{CALL}", HERMES))
    assert [block["type"] for block in both_calls["content"]] == ["tool_use", "tool_use"]
    assert len({block["id"] for block in both_calls["content"]}) == 2
    for choice in ({"type": "any"}, {"type": "tool", "name": "f"}):
        forced = {**body, "tool_choice": {**choice, "disable_parallel_tool_use": True}}
        (block,) = both(forced, Sayer(CALL, HERMES))["content"]
        assert block["input"] == {"x": 1}


def test_thoughts_are_blocks() -> None:
    body = {**BODY, "temperature": 0, "max_tokens": 99}
    thoughts, text = both(body, Sayer(SAID, QWEN))["content"]
    assert thoughts == {"type": "thinking", "thinking": "Let me see.\nYes.", "signature": ""}
    assert text == {"type": "text", "text": "The fox. "}
    route = Messages(offer_of(talker(QWEN)))
    earlier = [*MESSAGES, {"role": "assistant", "content": [thoughts, text]}, *MESSAGES]
    assert "(Let me see." in talker().tokenizer.decode(
        route.read({**BODY, "messages": earlier}).prompts[0]
    )
    off = route.read({**BODY, "thinking": {"type": "disabled"}})
    assert talker().tokenizer.decode(off.prompts[0]).endswith("</think>\n\n")
    on = {"type": "enabled", "budget_tokens": 1024}
    assert (
        not talker()
        .tokenizer.decode(route.read({**BODY, "thinking": on}).prompts[0])
        .endswith("</think>\n\n")
    )


def test_what_newer_clients_say_of_thoughts_and_formats() -> None:
    """An adaptive model thinks as its template has it, and an effort is a chat's."""
    route = Messages(offer_of(talker(QWEN)))

    def prompt(**fields: Any) -> Any:
        return route.read({**BODY, **fields}).prompts[0]

    adaptive = {"thinking": {"type": "adaptive"}}
    assert prompt(**adaptive) == prompt()
    thinks = prompt(thinking={"type": "enabled"})
    assert prompt(**adaptive, output_config={"effort": "max"}) == thinks
    shape = {"format": {"type": "json_schema", "schema": {"enum": ["yes", "no"]}}}
    labels = {"cache_control": {"type": "ephemeral"}}
    (block,) = both({**BODY, "output_config": shape, **labels})["content"]
    assert json.loads(block["text"]) in ("yes", "no")
    tool = {**TOOL, "eager_input_streaming": True}
    assert Messages(offer_of(talker(TOOLS))).read({**BODY, "tools": [tool]})


def test_a_system_a_beginning_and_labels() -> None:
    route = Messages(offer_of())
    block = {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}
    begun = [*MESSAGES, {"role": "assistant", "content": "It"}]
    labels = {"metadata": {"user_id": "u"}, "service_tier": "auto", "model": "tiny"}
    ask = route.read({**BODY, "system": [block], "messages": begun, **labels})
    worded = talker().tokenizer.decode(ask.prompts[0])
    assert worded == "<system>Be brief.\n<user>the quick brown fox\n<assistant>It"


def test_tokens_are_counted_as_they_are_read() -> None:
    offer = offer_of(talker(TOOLS))
    said = {"messages": MESSAGES, "system": "Be brief.", "tools": [TOOL]}

    async def work() -> Any:
        async with talking(talker(TOOLS)) as ask:
            return (await ask(f"{PATH}/count_tokens", said)).json()

    ask = Messages(offer).read({**said, "max_tokens": 5})
    assert run(work()) == {"input_tokens": len(ask.prompts[0])}


@pytest.mark.parametrize(
    ("code", "param", "fields"),
    [
        ("missing_required_parameter", "max_tokens", {"max_tokens": None}),
        ("missing_required_parameter", "messages", {"messages": None}),
        ("unsupported_value", "messages[0].role", {"messages": [{"role": "system"}]}),
        (
            "unsupported_value",
            "messages[0].content[0].type",
            {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
        ),
        ("unknown_parameter", "stop", {"stop": "a"}),
        ("model_not_found", "model", {"model": "claude"}),
        ("unsupported_parameter", "tools", {"tools": [TOOL]}),
        ("unsupported_parameter", "thinking", {"thinking": {"type": "enabled"}}),
        ("unsupported_value", "thinking.type", {"thinking": {"type": "some"}}),
        ("unsupported_parameter", "output_config.effort", {"output_config": {"effort": "low"}}),
        ("unsupported_value", "output_config.effort", {"output_config": {"effort": "great"}}),
        ("invalid_type", "output_config", {"output_config": "low"}),
        (
            "invalid_json_schema",
            "output_config.format.schema",
            {"output_config": {"format": {"type": "json_schema", "schema": {"type": "odd"}}}},
        ),
        ("unsupported_value", "tool_choice.type", {"tool_choice": {"type": "some"}}),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(
    code: str, param: str, fields: dict[str, Any]
) -> None:
    error = refusal(Messages(offer_of()), **{**BODY, **fields})
    assert (error.code, error.param) == (code, param)
    assert not re.search("enable_thinking|reasoning_effort|response_format", error.message)


def test_a_count_refuses_what_it_does_not_know() -> None:
    with pytest.raises(ApiError) as caught:
        CountTokens(offer_of()).answer({"messages": MESSAGES, "max_tokens": 5})
    assert caught.value.param == "max_tokens"
