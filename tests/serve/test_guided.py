"""Guided answers in vLLM's words."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from talking import CHAT, COMPLETIONS, MESSAGES, answer_to, offer_of, refusal

from forerun.serve.openai.routes.chat import Chat

CHOICES = ['yes "sir"', "no\\ way\n", "é(.*)"]
SCHEMA = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"]}
SCHEMA |= {"additionalProperties": False}
BODY: dict[str, Any] = {"max_tokens": 60, "temperature": 0.8, "seed": 3}
WAYS = [
    ("choice", CHOICES, lambda text: text in CHOICES),
    ("regex", "[a-f]{3}-[0-9]{2}", lambda text: re.fullmatch("[a-f]{3}-[0-9]{2}", text)),
    ("grammar", 'start: "a" b\nb: "c" | "d" b', lambda text: re.fullmatch("ad*c", text)),
    ("json", SCHEMA, lambda text: json.loads(text)["a"] in "xy"),
    ("json", json.dumps(SCHEMA), lambda text: json.loads(text)["a"] in "xy"),
]


@pytest.mark.parametrize(("name", "value", "fits"), WAYS)
def test_answers_are_as_they_are_guided(name: str, value: Any, fits: Any) -> None:
    spoken = {"messages": MESSAGES, **BODY}
    old, new = answer_to(
        CHAT,
        {**spoken, f"guided_{name}": value},
        {**spoken, "structured_outputs": {name: value}},
    )
    text = old["choices"][0]["message"]["content"]
    assert fits(text), text
    assert old["choices"][0]["finish_reason"] == "stop"
    assert new["choices"][0]["message"]["content"] == text
    written = answer_to(COMPLETIONS, {"prompt": "a", **BODY, f"guided_{name}": value})
    assert fits(written["choices"][0]["text"])


@pytest.mark.parametrize(
    ("code", "param", "fields"),
    [
        ("invalid_grammar", "guided_regex", {"guided_regex": "(a"}),
        ("invalid_grammar", "guided_grammar", {"guided_grammar": "start: nothing"}),
        ("invalid_grammar", "guided_grammar", {"guided_grammar": "start: "}),
        ("invalid_grammar", "guided_regex", {"guided_regex": "(a|b){0}"}),
        ("invalid_value", "min_tokens", {"min_tokens": 9, "max_tokens": 8}),
        ("invalid_json_schema", "guided_json", {"guided_json": {"type": "nonsense"}}),
        ("invalid_value", "guided_json", {"guided_json": "{"}),
        ("invalid_type", "guided_json", {"guided_json": 7}),
        ("array_below_min_length", "guided_choice", {"guided_choice": []}),
        ("invalid_type", "guided_choice", {"guided_choice": "a"}),
        ("invalid_grammar", "structured_outputs.regex", {"structured_outputs": {"regex": "("}}),
        ("unknown_parameter", "structured_outputs.rx", {"structured_outputs": {"rx": "a"}}),
        ("invalid_value", "guided_regex", {"guided_regex": "a", "guided_choice": ["b"]}),
        (
            "invalid_value",
            "guided_regex",
            {"guided_regex": "a", "response_format": {"type": "json_object"}},
        ),
        ("unsupported_parameter", "min_tokens", {"guided_regex": "ab", "min_tokens": 5}),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(
    code: str, param: str, fields: dict[str, Any]
) -> None:
    error = refusal(Chat(offer_of()), messages=MESSAGES, **fields)
    assert (error.status, error.code, error.param) == (400, code, param)
