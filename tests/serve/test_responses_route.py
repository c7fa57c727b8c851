"""Responses: text in and out, and the events that build an answer up."""

from __future__ import annotations

import json
from typing import Any

import pytest
from talking import (
    HERMES,
    MESSAGES,
    PLAIN,
    RESPONSES,
    Sayer,
    answer_to,
    generations,
    offer_of,
    refusal,
    talker,
    with_end,
)
from test_tools import TOOLS, F, G

import forerun as fr
from forerun.serve.admission.errors import ApiError
from forerun.serve.openai.routes.responses import LOGPROBS, Responses

THINKING = "{# </think> enable_thinking #}" + PLAIN
PROMPT = MESSAGES[0]["content"]
BODY: dict[str, Any] = {"input": PROMPT, "max_output_tokens": 12, "temperature": 0.8, "seed": 7}
ROUTE = Responses(offer_of())
SEQUENCE = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
]


def text_of(response: dict[str, Any]) -> str:
    (item,) = response["output"]
    (part,) = item["content"]
    return str(part["text"])


def test_the_text_is_that_of_generate_whole_or_streamed() -> None:
    whole, events = answer_to(RESPONSES, BODY, {**BODY, "stream": True})
    sampling = fr.Sampling(temperature=0.8, seed=7)
    (expected,) = generations(talker(), MESSAGES, sampling=sampling, max_new_tokens=12)
    assert text_of(whole) == expected.text
    deltas = [e["delta"] for e in events if e["type"] == "response.output_text.delta"]
    assert "".join(deltas) == expected.text
    last = events[-1]["response"]
    assert text_of(last) == expected.text
    assert last["usage"]["output_tokens"] == whole["usage"]["output_tokens"] == len(expected.tokens)
    assert whole["usage"]["input_tokens"] == len(expected.prompt_tokens)
    assert whole["usage"]["input_tokens_details"] == {"cached_tokens": 0}


def test_events_come_in_openais_order() -> None:
    body = {"input": "hi", "temperature": 0, "stream": True}
    events = answer_to(RESPONSES, body, target=Sayer("one two three"))
    kinds = [event["type"] for event in events]
    assert list(dict.fromkeys(kinds)) == [*SEQUENCE, "response.completed"]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[0]["response"]["status"] == "in_progress"
    assert events[0]["response"]["output"] == []
    assert events[-1]["response"]["status"] == "completed"
    item_ids = {event["item_id"] for event in events if "item_id" in event}
    assert item_ids == {events[-1]["response"]["output"][0]["id"]}
    assert events[-4]["text"] == "one two three"


def test_an_answer_that_was_cut_is_incomplete() -> None:
    body = {**BODY, "ignore_eos": True}
    whole, events = answer_to(RESPONSES, body, {**body, "stream": True})
    for response in (whole, events[-1]["response"]):
        assert response["status"] == "incomplete"
        assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert events[-1]["type"] == "response.incomplete"


def test_a_failure_on_the_way_is_an_event() -> None:
    reply = ROUTE.reply(ROUTE.read({**BODY, "stream": True}), "r", 0, "fp")
    reply.opening()
    (event,) = reply.failure(ApiError("The model failed.", status=500))
    assert event["type"] == "response.failed"
    assert event["sequence_number"] == 2
    assert event["response"]["status"] == "failed"
    assert event["response"]["error"]["message"] == "The model failed."


def test_instructions_and_messages_are_worded_by_the_template() -> None:
    said = {"type": "output_text", "text": "c", "annotations": [], "logprobs": []}
    ask = ROUTE.read(
        {
            "instructions": "be brief",
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "ab"}]},
                {
                    "type": "message",
                    "id": "msg_1",
                    "status": "completed",
                    "role": "assistant",
                    "content": [said],
                },
                {"role": "user", "content": "d"},
            ],
        }
    )
    text = "<system>be brief\n<user>ab\n<assistant>c\n<user>d\n<assistant>"
    assert talker().tokenizer.decode(ask.prompts[0]) == text
    assert ask.options.max_new_tokens == 512 - len(ask.prompts[0])


def test_an_answer_can_be_sent_back_as_input() -> None:
    first = answer_to(RESPONSES, BODY)
    conversation = [{"role": "user", "content": PROMPT}, *first["output"], *MESSAGES]
    ask = ROUTE.read({"input": conversation})
    assert text_of(first) in talker().tokenizer.decode(ask.prompts[0])


def test_json_by_a_schema() -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
    schema["additionalProperties"] = False
    chosen = {"type": "json_schema", "name": "thing", "schema": schema, "strict": True}
    space = str(talker().tokenizer.encode(" ")[0])
    body = {**BODY, "max_output_tokens": 200, "text": {"format": chosen}}
    whole = answer_to(RESPONSES, {**body, "logit_bias": {space: -100}})
    assert json.loads(text_of(whole))["a"] in (1, 2)
    assert whole["text"]["format"] == chosen


def test_logprobs_and_fates_where_asked_for() -> None:
    body = {**BODY, "include": [LOGPROBS], "top_logprobs": 2, "fates": True}
    whole, events = answer_to(RESPONSES, body, {**body, "stream": True})
    (item,) = whole["output"]
    (part,) = item["content"]
    assert len(part["logprobs"]) == whole["usage"]["output_tokens"]
    assert {len(entry["top_logprobs"]) for entry in part["logprobs"]} == {2}
    assert "".join(token["text"] for token in item["tokens"]) == part["text"]
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert [entry for event in deltas for entry in event["logprobs"]] == part["logprobs"]
    assert sum(len(event["fates"]) for event in deltas) == len(item["fates"])


FLAT: list[dict[str, Any]] = [
    {"type": tool["type"], **tool["function"], "strict": False} for tool in TOOLS
]


def test_the_loop_of_an_agent_goes_through_calls_and_their_results() -> None:
    """A text, two calls, their results, and an answer; whole and streamed."""
    body = {"input": PROMPT, "temperature": 0, "tools": FLAT}
    streamed = {**body, "stream": True}
    whole, events = answer_to(RESPONSES, body, streamed, target=Sayer(f"sure\n{F}\n{G}", HERMES))
    kinds = [item["type"] for item in whole["output"]]
    assert kinds == ["message", "function_call", "function_call"]
    text, first, second = whole["output"]
    assert text["content"][0]["text"] == "sure"
    assert (first["name"], json.loads(first["arguments"])) == ("f", {"x": 3})
    assert (second["name"], second["arguments"]) == ("g", "{}")
    assert len({item["id"] for item in whole["output"]}) == 3
    assert first["call_id"] != second["call_id"]
    assert (whole["status"], whole["tools"]) == ("completed", FLAT)

    last = events[-1]["response"]["output"]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    told = ("type", "name", "arguments", "content", "status")
    for items in (last, done):
        assert [[item.get(name) for name in told] for item in items] == [
            [item.get(name) for name in told] for item in whole["output"]
        ]
    places = [event["output_index"] for event in events if "output_index" in event]
    assert places == sorted(places)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    deltas = [e for e in events if e["type"] == "response.function_call_arguments.delta"]
    assert [json.loads(event["delta"]) for event in deltas] == [{"x": 3}, {}]

    results = [
        {"type": "function_call_output", "call_id": item["call_id"], "output": output}
        for item, output in ((first, "nine"), (second, [{"type": "input_text", "text": "ten"}]))
    ]
    conversation = [{"role": "user", "content": PROMPT}, *whole["output"], *results]
    ask = Responses(offer_of(talker(HERMES))).read({**body, "input": conversation})
    worded = talker().tokenizer.decode(ask.prompts[0])
    assert "<assistant>sure\n<tool>nine\n<tool>ten\n<assistant>" in worded
    assert 'f {"x": 3}' in worded


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "f"}])
def test_a_call_can_be_forced(choice: Any) -> None:
    body = {**BODY, "tools": FLAT[:1], "tool_choice": choice, "max_output_tokens": 200}
    whole = answer_to(RESPONSES, body, target=with_end(talker(HERMES)))
    assert {item["type"] for item in whole["output"]} == {"function_call"}
    assert whole["output"][0]["name"] == "f"
    assert 0 <= json.loads(whole["output"][0]["arguments"])["x"] <= 9 or whole["output"][0]
    assert whole["tool_choice"] == choice


def test_calls_without_end_are_cut_off() -> None:
    """A model that calls on and on: the answer ends as any other that is too long."""
    body = {**BODY, "temperature": 0, "tools": FLAT, "max_output_tokens": 200}
    whole = answer_to(RESPONSES, body, target=Sayer(f"{G}\n" * 99, HERMES))
    assert whole["status"] == "incomplete"
    assert 2 <= sum(item["type"] == "function_call" for item in whole["output"]) < 99


def test_thoughts_are_items_of_their_own() -> None:
    body = {"input": PROMPT, "temperature": 0, "reasoning": {"effort": "high"}}
    said = "<think>\nhm, so\n</think>\n\nyes"
    whole, events = answer_to(
        RESPONSES, body, {**body, "stream": True}, target=Sayer(said, THINKING)
    )
    thoughts, message = whole["output"]
    assert (thoughts["type"], thoughts["summary"]) == ("reasoning", [])
    assert thoughts["content"] == [{"type": "reasoning_text", "text": "hm, so"}]
    assert message["content"][0]["text"] == "yes"
    deltas = [e["delta"] for e in events if e["type"] == "response.reasoning_text.delta"]
    assert "".join(deltas) == "hm, so"
    again = [{"role": "user", "content": PROMPT}, *whole["output"], *MESSAGES]
    ask = Responses(offer_of(talker(THINKING))).read({**body, "input": again})
    worded = talker().tokenizer.decode(ask.prompts[0])
    assert "hm, so" not in worded  # this template leaves earlier thoughts out
    assert "<assistant>yes" in worded
    never = answer_to(RESPONSES, body, target=Sayer("<think>on and on", THINKING))
    assert [item["type"] for item in never["output"]] == ["reasoning"]


def test_what_was_asked_is_told_back() -> None:
    body = {**BODY, "metadata": {"a": "b"}, "user": "u", "instructions": "x", "top_p": 0.5}
    whole = answer_to(RESPONSES, body)
    assert whole["metadata"] == {"a": "b"}
    assert (whole["user"], whole["instructions"], whole["top_p"]) == ("u", "x", 0.5)
    assert (whole["store"], whole["previous_response_id"], whole["tools"]) == (False, None, [])


REFUSED = [
    ("unsupported_parameter", "previous_response_id", {"previous_response_id": "resp_1"}),
    ("unsupported_parameter", "conversation", {"conversation": "conv_1"}),
    ("unsupported_parameter", "reasoning.effort", {"reasoning": {"effort": "low"}}),
    ("unsupported_parameter", "reasoning.summary", {"reasoning": {"summary": "auto"}}),
    ("unsupported_parameter", "max_tool_calls", {"max_tool_calls": 3}),
    ("unsupported_value", "store", {"store": True}),
    ("unsupported_value", "background", {"background": True}),
    ("unsupported_value", "truncation", {"truncation": "auto"}),
    ("unsupported_parameter", "tools", {"tools": [{"type": "function", "name": "f"}]}),
    ("unsupported_value", "tools[0].type", {"tools": [{"type": "web_search"}]}),
    ("missing_required_parameter", "tools[0].name", {"tools": [{"type": "function"}]}),
    ("array_above_max_length", "tools", {"tools": [{"type": "function", "name": "f"}] * 200}),
    ("invalid_value", "tool_choice", {"tool_choice": "required"}),
    ("unknown_parameter", "n", {"n": 2}),
    ("invalid_value", "top_logprobs", {"top_logprobs": 2}),
    ("unsupported_value", "include[0]", {"include": ["file_search_call.results"]}),
    ("missing_required_parameter", "input", {"input": None}),
    ("string_below_min_length", "input", {"input": ""}),
    ("invalid_type", "input", {"input": 3}),
    ("unsupported_value", "input[0].type", {"input": [{"type": "item_reference"}]}),
    (
        "invalid_value",
        "input[0].tool_call_id",
        {"input": [{"type": "function_call_output", "call_id": "c", "output": "4"}]},
    ),
    (
        "missing_required_parameter",
        "input[0].output",
        {"input": [{"type": "function_call_output", "call_id": "c"}]},
    ),
    (
        "unsupported_value",
        "input[0].content[0].type",
        {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
    ),
    ("unsupported_value", "text.format.type", {"text": {"format": {"type": "xml"}}}),
    ("context_length_exceeded", "input", {"input": "z" * 600}),
]


@pytest.mark.parametrize(("code", "param", "fields"), REFUSED, ids=lambda value: str(value)[:50])
def test_what_cannot_be_honoured_is_refused_by_name(
    code: str, param: str, fields: dict[str, Any]
) -> None:
    error = refusal(ROUTE, **{**BODY, **fields})
    assert (error.status, error.code, error.param) == (400, code, param)
