"""Chat completions: templates, formats, log-probabilities, chunks."""

from __future__ import annotations

import json
from typing import Any

import pytest
from serving import run
from talking import (
    CHAT,
    COMPLETIONS,
    HERMES,
    MESSAGES,
    RESPONSES,
    Sayer,
    answer_to,
    generations,
    offer_of,
    refusal,
    talker,
    talking,
)

import forerun as fr
from forerun.grammars import guided
from forerun.serve.openai.replies import Words
from forerun.serve.openai.routes.chat import Chat

BODY: dict[str, Any] = {"messages": MESSAGES, "max_tokens": 12, "temperature": 0.8, "seed": 7}
ROUTE = Chat(offer_of())


def content_of(events: list[Any], index: int = 0) -> str:
    deltas = [c["delta"] for e in events[:-1] for c in e["choices"] if c["index"] == index]
    return "".join(delta.get("content") or "" for delta in deltas)


def test_choices_are_the_samples_of_generate_whole_or_streamed() -> None:
    body = {**BODY, "n": 2}
    whole, events = answer_to(CHAT, body, {**body, "stream": True})
    sampling = fr.Sampling(temperature=0.8, seed=7, n=2)
    options: dict[str, Any] = {"sampling": sampling, "max_new_tokens": 12}
    samples = [answer.text for answer in generations(talker(), MESSAGES, **options)]
    assert [choice["message"]["content"] for choice in whole["choices"]] == samples
    assert whole["object"] == "chat.completion"
    assert whole["choices"][0]["message"]["role"] == "assistant"
    assert [content_of(events, index) for index in range(2)] == samples


def test_a_stream_begins_with_the_role_and_ends_with_the_reason() -> None:
    target = Sayer("naïve 🦊 世界")
    body = {"messages": MESSAGES, "temperature": 0}
    whole, events = answer_to(CHAT, body, {**body, "stream": True}, target=target)
    assert whole["choices"][0]["message"]["content"] == "naïve 🦊 世界"
    assert whole["choices"][0]["finish_reason"] == "stop"
    first, *_, last, done = events
    assert first["choices"][0]["delta"]["role"] == "assistant"
    assert last["choices"][0] == {
        "index": 0,
        "delta": {},
        "logprobs": None,
        "finish_reason": "stop",
    }
    assert done == "[DONE]"
    assert content_of(events) == "naïve 🦊 世界"
    assert {event["object"] for event in events[:-1]} == {"chat.completion.chunk"}
    assert len({event["id"] for event in events[:-1]}) == 1
    assert all("usage" not in event for event in events[:-1])


def test_counts_come_last_where_asked_for() -> None:
    streamed = {**BODY, "stream": True, "stream_options": {"include_usage": True}}
    whole, events = answer_to(CHAT, BODY, streamed)
    *chunks, last, _ = events
    assert all(chunk["usage"] is None for chunk in chunks)
    assert last["choices"] == []
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert last["usage"][name] == whole["usage"][name]
    assert last["usage"]["speculation"].keys() == whole["usage"]["speculation"].keys()


def test_counts_come_with_every_chunk_where_asked_for() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = answer_to(CHAT, {**BODY, "n": 2, "stream": True, "stream_options": options})
    *chunks, last, _ = events
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts[0] == 0
    assert counts == sorted(counts)
    assert counts[-1] == last["usage"]["completion_tokens"] > counts[len(counts) // 2] > 0
    for chunk in chunks:
        used = chunk["usage"]
        assert used["prompt_tokens"] == last["usage"]["prompt_tokens"]
        assert used["total_tokens"] == used["prompt_tokens"] + used["completion_tokens"]


def test_logprobs_are_those_of_generate_with_bytes() -> None:
    body = {**BODY, "logprobs": True, "top_logprobs": 2, "fates": True}
    whole, events = answer_to(CHAT, body, {**body, "stream": True})
    (choice,) = whole["choices"]
    sampling = fr.Sampling(temperature=0.8, seed=7)
    options: dict[str, Any] = {"sampling": sampling, "max_new_tokens": 12, "logprobs": 2}
    (expected,) = generations(talker(), MESSAGES, **options)
    told, words = choice["logprobs"]["content"], Words(talker().tokenizer)
    assert [entry["logprob"] for entry in told] == [each.logprob for each in expected.logprobs]
    assert [bytes(entry["bytes"]) for entry in told] == [words.bytes(t) for t in expected.tokens]
    tops = [[item["logprob"] for item in entry["top_logprobs"]] for entry in told]
    assert tops == [[logprob for _, logprob in each.top] for each in expected.logprobs]
    joined = b"".join(bytes(entry["bytes"]) for entry in told)
    decoded = joined.decode(errors="replace").replace("<end>", "")
    assert decoded.startswith(choice["message"]["content"])  # but for a character that was cut off
    assert not decoded.removeprefix(choice["message"]["content"]).strip("\ufffd")
    parts = [c for event in events[:-1] for c in event["choices"]]
    streamed = [
        entry for part in parts if part["logprobs"] for entry in part["logprobs"]["content"]
    ]
    assert streamed == told
    pieces = [part for each in parts for part in each.get("tokens", ())]
    assert "".join(part["text"] for part in pieces) == choice["message"]["content"]
    assert [fate for each in parts for fate in each.get("fates", ())] != []
    (plain,) = answer_to(CHAT, {**BODY, "logprobs": True})["choices"]
    assert [entry["top_logprobs"] for entry in plain["logprobs"]["content"]] == [[]] * len(told)


def test_messages_are_worded_by_the_template() -> None:
    tokenizer = talker().tokenizer
    ask = ROUTE.read(
        {
            "messages": [
                {"role": "developer", "content": "be brief"},
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
                },
                {
                    "role": "assistant",
                    "content": "c",
                    "refusal": None,
                    "audio": None,
                    "annotations": [],
                },
                {"role": "user", "content": "d"},
            ]
        }
    )
    text = "<system>be brief\n<user>ab\n<assistant>c\n<user>d\n<assistant>"
    assert tokenizer.decode(ask.prompts[0]) == text
    assert ask.options.max_new_tokens == 512 - len(ask.prompts[0])


def test_json_by_a_schema() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer", "maximum": 99}, "b": {"enum": ["x", "y"]}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    inner = {"name": "thing", "schema": schema, "strict": True}
    body = {
        **BODY,
        "max_tokens": 200,
        "logit_bias": {str(talker().tokenizer.encode(" ")[0]): -100},
        "response_format": {"type": "json_schema", "json_schema": inner},
    }
    whole, events = answer_to(CHAT, body, {**body, "stream": True})
    text = whole["choices"][0]["message"]["content"]
    assert json.loads(text).keys() == {"a", "b"}
    assert json.loads(text)["b"] in ("x", "y")
    assert content_of(events) == text


def test_grammars_are_compiled_before_an_engine_asks() -> None:
    inner = {"name": "x", "schema": {"type": "object", "properties": {"zyx": {"type": "null"}}}}
    chosen = {"type": "json_schema", "json_schema": inner}
    ask = ROUTE.read({**BODY, "response_format": chosen})
    end = (talker().tokenizer.eos_token_id,)
    known = guided._vocabulary(talker().tokenizer, talker().vocab_size, end)
    hits = known.compiled.cache_info().hits
    ask.options.sampling.grammar.matcher(talker().tokenizer, talker().vocab_size, end)
    assert known.compiled.cache_info().hits == hits + 1


@pytest.mark.parametrize("depth", [200, 5000])
def test_a_schema_that_is_nested_too_deeply_is_refused(depth: int) -> None:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    chosen = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    error = refusal(ROUTE, **BODY, response_format=chosen)
    assert error.param == "response_format.json_schema.schema"


def test_any_json_object() -> None:
    body = {**BODY, "response_format": {"type": "json_object"}, "max_tokens": 3}
    (choice,) = answer_to(CHAT, body)["choices"]
    assert choice["message"]["content"].lstrip().startswith("{")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {**BODY, "response_format": {"type": "json_object"}}),
        (COMPLETIONS, {"prompt": "a", "response_format": {"type": "json_object"}}),
        (RESPONSES, {"input": "a", "text": {"format": {"type": "json_object"}}}),
    ],
)
def test_a_least_number_of_tokens_and_a_format_that_may_be_complete_earlier(
    path: str, body: dict[str, Any]
) -> None:
    """The engine would find no token at all: with both of them it had to fail."""

    async def work() -> Any:
        async with talking() as ask:
            return [await ask(path, {**body, "min_tokens": count}) for count in (3, 0)]

    refused, answered = run(work())
    assert (refused.status, answered.status) == (400, 200)
    error = refused.json()["error"]
    assert (error["code"], error["param"]) == ("unsupported_parameter", "min_tokens")


def test_a_schema_needs_no_name_and_may_be_described() -> None:
    inner = {"schema": {"type": "object"}, "description": "Whatever it is."}
    chosen = {"type": "json_schema", "json_schema": inner}
    assert ROUTE.read({**BODY, "response_format": chosen}).options.sampling.grammar is not None


def test_tokens_that_end_the_answer() -> None:
    plain = answer_to(CHAT, {**BODY, "fates": True})["choices"][0]
    third = plain["token_ids"][2]
    place = plain["token_ids"].index(third)
    body = {**BODY, "stop_token_ids": [third], "fates": True}
    ended = answer_to(CHAT, body)["choices"][0]
    assert ended["token_ids"] == plain["token_ids"][: place + 1]
    assert ended["finish_reason"] == "stop"


def test_an_answer_goes_on_from_its_beginning() -> None:
    begun = [*MESSAGES, {"role": "assistant", "content": "It jumps"}]
    whole = "<user>the quick brown fox\n<assistant>It jumps"
    fields = {"continue_final_message": True, "messages": begun}
    ask = ROUTE.read({**BODY, **fields})
    assert talker().tokenizer.decode(ask.prompts[0]) == whole
    assert ROUTE.read({**BODY, **fields, "add_generation_prompt": False}).prompts == ask.prompts
    error = refusal(ROUTE, **{**BODY, **fields, "add_generation_prompt": True})
    assert error.param == "continue_final_message"
    bare = ROUTE.read({**BODY, "add_generation_prompt": False})
    assert talker().tokenizer.decode(bare.prompts[0]) == "<user>the quick brown fox\n"


def test_two_names_for_one_limit() -> None:
    assert ROUTE.read({**BODY, "max_completion_tokens": 12}).options.max_new_tokens == 12
    assert (
        ROUTE.read({"messages": MESSAGES, "max_completion_tokens": 5}).options.max_new_tokens == 5
    )
    error = refusal(ROUTE, **BODY, max_completion_tokens=25)
    assert (error.code, error.param) == ("invalid_value", "max_tokens")
    assert "12 and 25" in error.message


IMAGE = [{"type": "image_url", "image_url": {"url": "http://x/y.png"}}]
BAD_SCHEMA = {"name": "x", "schema": {"type": "nonsense"}}
TOOLS = [{"type": "function", "function": {"name": "f"}}]
REFUSED = [
    ("missing_required_parameter", "messages", {"messages": None}),
    ("array_below_min_length", "messages", {"messages": []}),
    ("invalid_type", "messages", {"messages": "hello"}),
    ("invalid_type", "messages[0]", {"messages": ["hello"]}),
    ("unsupported_value", "messages[0].role", {"messages": [{"role": "king", "content": "a"}]}),
    ("missing_required_parameter", "messages[0].content", {"messages": [{"role": "user"}]}),
    ("missing_required_parameter", "messages[0].content", {"messages": [{"role": "assistant"}]}),
    (
        "unsupported_value",
        "messages[0].content[0].type",
        {"messages": [{"role": "user", "content": IMAGE}]},
    ),
    (
        "unsupported_parameter",
        "messages[0].name",
        {"messages": [{"role": "user", "content": "a", "name": "Bob"}]},
    ),
    (
        "unknown_parameter",
        "messages[0].colour",
        {"messages": [{"role": "user", "content": "a", "colour": 1}]},
    ),
    ("invalid_value", "top_logprobs", {"top_logprobs": 2}),
    ("integer_above_max_value", "top_logprobs", {"logprobs": True, "top_logprobs": 21}),
    ("invalid_type", "logprobs", {"logprobs": 2}),
    ("unsupported_parameter", "functions", {"functions": []}),
    ("unsupported_parameter", "reasoning_effort", {"reasoning_effort": "high"}),
    ("unsupported_value", "reasoning_effort", {"reasoning_effort": "much"}),
    ("unsupported_parameter", "enable_thinking", {"enable_thinking": True}),
    ("unsupported_parameter", "chat_template_kwargs.a", {"chat_template_kwargs": {"a": 1}}),
    ("invalid_type", "chat_template_kwargs", {"chat_template_kwargs": [1]}),
    ("invalid_value", "continue_final_message", {"continue_final_message": True}),
    ("invalid_type", "stop_token_ids", {"stop_token_ids": 7}),
    ("integer_above_max_value", "stop_token_ids[0]", {"stop_token_ids": [10**6]}),
    (
        "unsupported_parameter",
        "messages[0].reasoning_content",
        {"messages": [{"role": "assistant", "content": "a", "reasoning_content": "b"}]},
    ),
    ("unsupported_value", "modalities[0]", {"modalities": ["audio"]}),
    ("unknown_parameter", "echo", {"echo": True}),
    (
        "unsupported_parameter",
        "tools",
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
    ),
    ("invalid_value", "tool_choice", {"tool_choice": "required"}),
    (
        "invalid_json_schema",
        "response_format.json_schema.schema",
        {"response_format": {"type": "json_schema", "json_schema": BAD_SCHEMA}},
    ),
    (
        "missing_required_parameter",
        "response_format.json_schema",
        {"response_format": {"type": "json_schema"}},
    ),
]


@pytest.mark.parametrize(("code", "param", "fields"), REFUSED, ids=lambda value: str(value)[:50])
def test_what_cannot_be_honoured_is_refused_by_name(
    code: str, param: str, fields: dict[str, Any]
) -> None:
    error = refusal(ROUTE, **{**BODY, **fields})
    assert (error.status, error.code, error.param) == (400, code, param)


def test_a_model_without_tools_says_so() -> None:
    error = refusal(ROUTE, **BODY, tools=TOOLS)
    assert "chat template does not show them" in error.message


def test_a_conversation_without_room_is_refused_with_numbers() -> None:
    error = refusal(ROUTE, messages=[{"role": "user", "content": "z" * 600}])
    assert (error.code, error.param) == ("context_length_exceeded", "messages")


def test_a_model_without_a_template_says_so() -> None:
    error = refusal(Chat(offer_of(talker(None))), **BODY)
    assert error.param == "messages"
    assert "/v1/completions" in error.message


def test_a_template_that_refuses_is_quoted() -> None:
    strict = "{{ raise_exception('roles must alternate') }}"
    error = refusal(Chat(offer_of(talker(strict))), **BODY)
    assert (error.status, error.param) == (400, "messages")
    assert "roles must alternate" in error.message


def test_a_name_is_honoured_where_the_template_reads_it() -> None:
    named = "{% for message in messages %}{{ message['name'] }}{{ message.content }}{% endfor %}"
    route = Chat(offer_of(talker(named)))
    ask = route.read({"messages": [{"role": "user", "content": "hi", "name": "Bob"}]})
    assert talker().tokenizer.decode(ask.prompts[0]) == "Bobhi"


def test_earlier_calls_are_worded_and_their_answers_checked() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    asked = {"role": "assistant", "content": None, "tool_calls": [call]}
    told = {"role": "tool", "content": "42", "tool_call_id": "c1"}
    route = Chat(offer_of(talker(HERMES)))
    text = talker().tokenizer.decode(route.read({"messages": [*MESSAGES, asked, told]}).prompts[0])
    assert 'f {"x": 1}' in text
    assert "<tool>42" in text
    named = route.read({"messages": [*MESSAGES, asked, {**told, "name": "f"}]})
    assert talker().tokenizer.decode(named.prompts[0]) == text
    error = refusal(route, messages=[*MESSAGES, asked, {**told, "name": "g"}])
    assert (error.code, error.param) == ("invalid_value", "messages[2].name")
    error = refusal(route, messages=[*MESSAGES, asked, {**told, "tool_call_id": "c2"}])
    assert error.param == "messages[2].tool_call_id"
    broken = {**asked, "tool_calls": [{**call, "function": {"name": "f", "arguments": "{"}}]}
    error = refusal(route, messages=[broken])
    assert error.param == "messages[0].tool_calls[0].function.arguments"
    error = refusal(ROUTE, messages=[*MESSAGES, asked])
    assert (error.code, error.param) == ("unsupported_parameter", "messages[1].tool_calls")
