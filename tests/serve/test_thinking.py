"""Thoughts: asked for by the template's variables, and told apart from the answer."""

from __future__ import annotations

from typing import Any

import pytest
from talking import CALLS, CHAT, MESSAGES, Sayer, answer_to, offer_of, refusal, talker

from forerun.serve.openai.routes.chat import Chat
from forerun.serve.openai.thinking import Thought, ThoughtReader

QWEN = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content.split('</think>')[-1] }}"
    "{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
    "{% endif %}"
)
OPENED = QWEN.replace("{% if enable_thinking is", "<think>\n{% if enable_thinking is")
TOOLS = "{% if tools %}{{ tools | tojson }} as <tool_call>\n{% endif %}" + CALLS + QWEN
HARD = QWEN + "{{ reasoning_effort }}"
BODY: dict[str, Any] = {"messages": MESSAGES, "max_tokens": 200, "temperature": 0}
SAID = "<think>\nLet me see.\nYes. \n</think>\n\nThe fox. "


def read(text: str, size: int, *, is_inside: bool) -> tuple[str, str]:
    """Thoughts and answer of a text in pieces of a size."""
    reader = ThoughtReader(is_inside=is_inside)
    told = [step for i in range(0, len(text), size) for step in reader.push(text[i : i + size])]
    told += reader.push("", final=True)
    thoughts = "".join(step.text for step in told if isinstance(step, Thought))
    return thoughts, "".join(step for step in told if isinstance(step, str))


@pytest.mark.parametrize(
    ("text", "is_inside", "expected"),
    [
        (SAID, False, ("Let me see.\nYes.", "The fox. ")),
        (SAID.removeprefix("<think>"), True, ("Let me see.\nYes.", "The fox. ")),
        ("  <think>a</think>b", False, ("a", "b")),
        ("<think></think>b", False, ("", "b")),
        ("<think> a < b </think ", False, ("a < b </think", "")),
        ("a </thin", True, ("a </thin", "")),
        ("<think>never closed \n", False, ("never closed", "")),
        ("<think>", False, ("", "")),
        ("<thin", False, ("", "<thin")),
        (" \n", False, ("", " \n")),
        ("", True, ("", "")),
        (" no <think>a</think>", False, ("", " no <think>a</think>")),
        ("a</think>b</think> c", True, ("a", "b</think> c")),
        ("a \n\n b</think>\n\n\n", True, ("a \n\n b", "")),
    ],
)
def test_pieces_do_not_matter(text: str, is_inside: bool, expected: tuple[str, str]) -> None:
    for size in (1, 2, 3, 7, 1000):
        assert read(text, size, is_inside=is_inside) == expected


@pytest.mark.parametrize("template", [QWEN, OPENED])
def test_thoughts_are_split_off_whole_and_streamed(template: str) -> None:
    target = Sayer(SAID, template)  # which goes on after a beginning of it in the prompt
    whole, events = answer_to(CHAT, BODY, {**BODY, "stream": True}, target=target)
    message = whole["choices"][0]["message"]
    assert message["reasoning_content"] == "Let me see.\nYes."
    assert message["content"] == "The fox. "
    deltas = [event["choices"][0]["delta"] for event in events[:-1]]
    assert "".join(d.get("reasoning_content") or "" for d in deltas) == "Let me see.\nYes."
    assert "".join(d.get("content") or "" for d in deltas) == "The fox. "


def test_an_answer_that_was_cut_while_thinking_has_no_content() -> None:
    (choice,) = answer_to(CHAT, {**BODY, "max_tokens": 12}, target=Sayer(SAID, QWEN))["choices"]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["content"] == ""
    assert "Let me see".startswith(choice["message"]["reasoning_content"] or "")


def test_a_template_that_knows_no_thoughts_leaves_them_in_the_text() -> None:
    (choice,) = answer_to(CHAT, BODY, target=Sayer(SAID))["choices"]
    assert choice["message"]["content"] == SAID
    assert "reasoning_content" not in choice["message"]


def test_calls_after_thoughts_are_read() -> None:
    call = '<think>I call.</think>\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    tools = [{"type": "function", "function": {"name": "f"}}]
    body = {**BODY, "tools": tools}
    whole, events = answer_to(CHAT, body, {**body, "stream": True}, target=Sayer(call, TOOLS))
    message = whole["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("I call.", None)
    assert message["tool_calls"][0]["function"]["name"] == "f"
    deltas = [event["choices"][0]["delta"] for event in events[:-1]]
    assert [d for d in deltas if "tool_calls" in d]


def worded(template: str, **fields: Any) -> str:
    ask = Chat(offer_of(talker(template))).read({**BODY, **fields})
    return str(talker().tokenizer.decode(ask.prompts[0]))


@pytest.mark.parametrize(
    ("fields", "thinks"),
    [
        ({}, True),
        ({"enable_thinking": True}, True),
        ({"enable_thinking": False}, False),
        ({"chat_template_kwargs": {"enable_thinking": False}}, False),
        ({"reasoning_effort": "none"}, False),
        ({"reasoning_effort": "low"}, True),
        ({"enable_thinking": False, "reasoning_effort": "none"}, False),
    ],
)
def test_ways_to_ask_for_thoughts_or_for_none(fields: dict[str, Any], thinks: bool) -> None:
    assert worded(QWEN, **fields).endswith("<assistant>" if thinks else "</think>\n\n")


def test_an_effort_is_told_to_a_template_that_reads_it() -> None:
    assert worded(HARD, reasoning_effort="high").endswith("high")
    assert worded(QWEN.replace("enable_thinking", "x"), reasoning_effort="none")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"enable_thinking": True, "reasoning_effort": "none"}, "enable_thinking"),
        (
            {"chat_template_kwargs": {"enable_thinking": True}, "enable_thinking": False},
            "enable_thinking",
        ),
        ({"chat_template_kwargs": {"thinking_budget": 3}}, "chat_template_kwargs.thinking_budget"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
        ({"chat_template_kwargs": {"tokenize": True}}, "chat_template_kwargs.tokenize"),
    ],
)
def test_what_a_template_cannot_be_asked(fields: dict[str, Any], param: str) -> None:
    assert refusal(Chat(offer_of(talker(QWEN))), **BODY, **fields).param == param


def test_earlier_thoughts_go_back_to_a_template_that_reads_them() -> None:
    earlier = {"role": "assistant", "content": "a", "reasoning_content": "b"}
    assert "<assistant>a(b)" in worded(QWEN, messages=[*MESSAGES, earlier, *MESSAGES])


def test_an_answer_with_thoughts_can_be_sent_back() -> None:
    """Also one that was cut off while it thought, and where the template leaves thoughts out."""
    silent = QWEN.replace("m.reasoning_content", "false").replace("({{ false }})", "")
    assert "reasoning_content" not in silent
    for template in (QWEN, silent):
        for size in (200, 16):
            body = {**BODY, "max_tokens": size}
            (choice,) = answer_to(CHAT, body, target=Sayer(SAID, template))["choices"]
            assert choice["message"]["reasoning_content"]
            assert worded(template, messages=[*MESSAGES, choice["message"], *MESSAGES])
    fields = {"role": "assistant", "content": "a", "reasoning_content": "b"}
    error = refusal(Chat(offer_of()), messages=[*MESSAGES, fields])
    assert error.param == "messages[1].reasoning_content"


def test_what_a_user_says_opens_no_thoughts() -> None:
    said = [{"role": "user", "content": "What is <think>?"}]
    (choice,) = answer_to(CHAT, {**BODY, "messages": said}, target=Sayer("A tag.", QWEN))["choices"]
    assert choice["message"]["content"] == "A tag."
    assert choice["message"]["reasoning_content"] is None


def test_a_beginning_of_thoughts_goes_on() -> None:
    begun = [*MESSAGES, {"role": "assistant", "content": "<think>Let"}]
    plain = QWEN.replace("m.content.split('</think>')[-1]", "m.content")
    body = {**BODY, "messages": begun, "continue_final_message": True}
    (choice,) = answer_to(CHAT, body, target=Sayer(SAID, plain))["choices"]
    assert choice["message"]["content"].endswith("The fox. ")
    assert choice["message"]["reasoning_content"].endswith("Yes.")
