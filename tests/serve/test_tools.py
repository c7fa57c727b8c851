"""Tool calls: read from texts in any pieces, forced by grammars, told in OpenAI's words."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from talking import CHAT, HERMES, LLAMA, MESSAGES, Sayer, answer_to, offer_of, refusal, talker

from forerun.serve.openai.routes.chat import Chat
from forerun.serve.openai.tools import Call, Hermes, Llama, writing_of

SCHEMA = {
    "type": "object",
    "properties": {"x": {"type": "integer", "maximum": 9}},
    "required": ["x"],
    "additionalProperties": False,
}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "f", "description": "F.", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "g"}},
]
F = '<tool_call>\n{"name": "f", "arguments": {"x": 3}}\n</tool_call>'
G = '<tool_call>{"name": "g", "arguments": {}}</tool_call>'
TAGS = r'{"x": "a \" </tool_call> and </tool_call>"}'
TAGGED = f'<tool_call>{{"name": "g", "arguments": {TAGS}}}</tool_call>'
UNENDED = '<tool_call>{"name": "g</tool_call>'
HERMES_TEXTS: list[tuple[str, list[Any]]] = [
    ("no call, a < b <tool", ["no call, a < b <tool"]),
    ("trailing space \n", ["trailing space \n"]),
    (F, [Call("f", '{"x": 3}')]),
    (f"well,\n{F}", ["well,", Call("f", '{"x": 3}')]),
    (f"{F}\n{G}\n", [Call("f", '{"x": 3}'), Call("g", "{}")]),
    (f"{F}\n and then", [Call("f", '{"x": 3}'), "and then"]),
    ("<tool_call>{bad</tool_call>", ["<tool_call>{bad</tool_call>"]),
    ('<tool_call>{"name": "h"}</tool_call>', ['<tool_call>{"name": "h"}</tool_call>']),
    ('<tool_call>{"name": "g", "argum', ['<tool_call>{"name": "g", "argum']),
    (F[: -len("</tool_call>")], [Call("f", '{"x": 3}')]),
    (f"{TAGGED}\n{G}", [Call("g", TAGS), Call("g", "{}")]),
    (TAGGED[: -len("</tool_call>")], [Call("g", TAGS)]),
    (f"{UNENDED} so {G}", [f"{UNENDED} so", Call("g", "{}")]),
]
LLAMA_TEXTS: list[tuple[str, list[Any]]] = [
    ("hello {", ["hello {"]),
    ('{"name": "f", "parameters": {"x": 3}}', [Call("f", '{"x": 3}')]),
    (
        ' {"name": "f", "parameters": {"x": 3}}; {"name": "g", "parameters": {}}',
        [Call("f", '{"x": 3}'), Call("g", "{}")],
    ),
    ('{"name": "h", "parameters": {}}', ['{"name": "h", "parameters": {}}']),
    ('{"name": "f"', ['{"name": "f"']),
    ("  ", ["  "]),
]


def joined(told: list[Any]) -> list[Any]:
    """Neighbouring texts as one."""
    steps: list[Any] = []
    for step in told:
        if steps and isinstance(step, str) and isinstance(steps[-1], str):
            steps[-1] += step
        else:
            steps.append(step)
    return steps


@pytest.mark.parametrize(
    ("writing", "text", "expected"),
    [(Hermes(), *pair) for pair in HERMES_TEXTS] + [(Llama(), *pair) for pair in LLAMA_TEXTS],
    ids=lambda value: repr(value)[:30],
)
def test_calls_are_read_whatever_the_pieces(writing: Any, text: str, expected: list[Any]) -> None:
    generator = random.Random(0)
    for size in (len(text), 1, *range(2, 12)):
        reader, told, place = writing.reader(["f", "g"]), [], 0
        while place < len(text):
            step = generator.randint(1, size)
            told += reader.push(text[place : place + step])
            place += step
        assert joined(told + reader.end()) == expected


def test_families_are_told_by_their_templates() -> None:
    assert isinstance(writing_of(HERMES), Hermes)
    assert isinstance(writing_of(LLAMA), Llama)
    assert writing_of("{{ tools }}") is None


def test_calls_whole_and_streamed() -> None:
    target = Sayer(f"sure\n{F}\n{G}", HERMES)
    body = {"messages": MESSAGES, "temperature": 0, "tools": TOOLS}
    whole, events = answer_to(CHAT, body, {**body, "stream": True}, target=target)
    (choice,) = whole["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "sure"
    calls = choice["message"]["tool_calls"]
    assert [call["function"]["name"] for call in calls] == ["f", "g"]
    assert json.loads(calls[0]["function"]["arguments"]) == {"x": 3}
    assert len({call["id"] for call in calls}) == 2
    deltas = [c["delta"] for event in events[:-1] for c in event["choices"]]
    assert "".join(delta.get("content") or "" for delta in deltas) == "sure"
    streamed = [call for delta in deltas for call in delta.get("tool_calls", ())]
    assert [call.pop("index") for call in streamed] == [0, 1]
    assert [call["function"] for call in streamed] == [call["function"] for call in calls]
    assert events[-2]["choices"][0]["finish_reason"] == "tool_calls"


def test_a_call_alone_has_no_content() -> None:
    target = Sayer(F, HERMES)
    body = {"messages": MESSAGES, "temperature": 0, "tools": TOOLS}
    (choice,) = answer_to(CHAT, body, target=target)["choices"]
    assert choice["message"]["content"] is None


def test_tool_choice_none_shows_tools_and_reads_no_calls() -> None:
    body = {"messages": MESSAGES, "temperature": 0, "tools": TOOLS, "tool_choice": "none"}
    (choice,) = answer_to(CHAT, body, target=Sayer(F, HERMES))["choices"]
    assert choice["message"]["content"] == F
    assert choice["finish_reason"] == "stop"
    ask = Chat(offer_of(talker(HERMES))).read(body)
    assert '"name": "f"' in talker().tokenizer.decode(ask.prompts[0])


@pytest.mark.parametrize("template", [HERMES, LLAMA], ids=["hermes", "llama"])
@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "f"}}], ids=["any", "named"]
)
def test_a_call_can_be_forced(template: str, choice: Any) -> None:
    """The model would babble; the seed is one for which it ends the list of calls in time."""
    body = {
        "messages": MESSAGES,
        "max_tokens": 300,
        "seed": 3,
        "tools": TOOLS,
        "tool_choice": choice,
        "parallel_tool_calls": False,
    }
    whole, events = answer_to(CHAT, body, {**body, "stream": True}, target=talker(template))
    (told,) = whole["choices"]
    assert told["finish_reason"] == "tool_calls"
    (call,) = told["message"]["tool_calls"]
    allowed = ("f", "g") if choice == "required" else ("f",)
    assert call["function"]["name"] in allowed
    arguments = json.loads(call["function"]["arguments"])
    assert arguments.keys() == ({"x"} if call["function"]["name"] == "f" else set())
    streamed = [c["delta"].get("tool_calls") for e in events[:-1] for c in e["choices"]]
    assert [calls[0]["function"] for calls in streamed if calls] == [call["function"]]


STRICT = [{"type": "function", "function": {**TOOLS[0]["function"], "strict": True}}, TOOLS[1]]
OTHER = '<tool_call>\n{"name": "f", "arguments": {"y": "z"}}\n</tool_call>'


@pytest.mark.parametrize(
    ("tools", "options", "text", "is_possible"),
    [
        (TOOLS, {"parallel_tool_calls": False}, F, True),
        (TOOLS, {"parallel_tool_calls": False}, f"{F}\n{F}", False),
        (TOOLS, {"parallel_tool_calls": False}, OTHER, True),
        (STRICT, {}, f"hello {F}\n{F}", True),
        (STRICT, {}, OTHER, False),
        (STRICT, {}, "no call at all", True),
    ],
    ids=["one", "two", "loose", "strict", "not strict", "text"],
)
def test_a_free_model_keeps_to_what_was_promised(
    tools: Any, options: Any, text: str, is_possible: bool
) -> None:
    target = talker(HERMES)
    ask = Chat(offer_of(target)).read({"messages": MESSAGES, "tools": tools, **options})
    end = target.tokenizer.eos_token_id
    matcher = ask.options.sampling.grammar.matcher(target.tokenizer, target.vocab_size, (end,))
    tokens = [*target.tokenizer.encode(text), end]
    assert all(matcher.accept(token) for token in tokens) is is_possible


@pytest.mark.parametrize("template", [HERMES, LLAMA], ids=["hermes", "llama"])
def test_a_named_function_is_called_once(template: str) -> None:
    target = talker(template)
    named = {"type": "function", "function": {"name": "g"}}
    body = {"messages": MESSAGES, "tools": TOOLS, "tool_choice": named}
    ask = Chat(offer_of(target)).read(body)
    end = target.tokenizer.eos_token_id
    once, between = '{"name": "g", "parameters": {}}', "; "
    if template == HERMES:
        once, between = '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>', "\n"
    for text, is_possible in ((once, True), (once + between + once, False)):
        matcher = ask.options.sampling.grammar.matcher(target.tokenizer, target.vocab_size, (end,))
        tokens = [*target.tokenizer.encode(text), end]
        assert all(matcher.accept(token) for token in tokens) is is_possible


def test_a_free_model_is_free() -> None:
    ask = Chat(offer_of(talker(HERMES))).read({"messages": MESSAGES, "tools": TOOLS})
    assert ask.options.sampling.grammar is None


def test_what_cannot_be_honoured_is_refused_by_name() -> None:
    route = Chat(offer_of(talker(HERMES)))
    named = {"type": "function", "function": {"name": "h"}}
    body: dict[str, Any] = {"messages": MESSAGES, "tools": TOOLS}
    assert refusal(route, **body, tool_choice=named).param == "tool_choice.function.name"
    error = refusal(route, **body, response_format={"type": "json_object"})
    assert error.param == "response_format"
    twice = [*TOOLS, TOOLS[0]]
    assert refusal(route, messages=MESSAGES, tools=twice).param == "tools[2].function.name"
    odd = [{"type": "function", "function": {"name": "a b"}}]
    assert refusal(route, messages=MESSAGES, tools=odd).param == "tools[0].function.name"
    bad = [{"type": "function", "function": {"name": "f", "parameters": {"type": "nonsense"}}}]
    error = refusal(route, messages=MESSAGES, tools=bad)
    assert (error.code, error.param) == ("invalid_json_schema", "tools[0].function.parameters")
    custom = [{"type": "custom", "custom": {"name": "f"}}]
    assert refusal(route, messages=MESSAGES, tools=custom).param == "tools[0].type"
    strange = Chat(offer_of(talker("{{ tools }}{{ messages[0].content }}")))
    assert "not known here" in refusal(strange, **body).message
