"""Typed readers of JSON, and the schemas they state."""

from __future__ import annotations

from typing import Any

import pytest

from forerun.serve.admission.errors import ApiError
from forerun.serve.openai.fields import (
    MOST_NESTED,
    Choice,
    Either,
    Flag,
    Json,
    ListOf,
    MapOf,
    Number,
    Text,
    Whole,
)
from forerun.serve.openai.objects import Field, Object, Tagged

STOPS = Either((Text(5, least=1), ListOf(Text(5), 2)), "a text or a list of texts")
INNER = Object({"x": Field(Whole(0, 9), required=True)}, {"old": "it is gone."})
CASES: list[tuple[Any, Any, str]] = [
    (Number(0, 2), True, "invalid_type"),
    (Number(0, 2), "1", "invalid_type"),
    (Number(0, 2), 2.01, "decimal_above_max_value"),
    (Number(0, 2), -0.01, "decimal_below_min_value"),
    (Number(0, 1, above_low=True), 0, "decimal_below_min_value"),
    (Number(0, 2), float("nan"), "decimal_above_max_value"),
    (Number(0, 2), 10**400, "decimal_above_max_value"),
    (Whole(0, 9), 1.5, "invalid_type"),
    (Whole(0, 9), False, "invalid_type"),
    (Whole(0, 9), 10, "integer_above_max_value"),
    (Whole(1, 9), 0, "integer_below_min_value"),
    (Text(3), "abcd", "string_above_max_length"),
    (Text(3, least=1), "", "string_below_min_length"),
    (Text(), 7, "invalid_type"),
    (Text(), "\ud800", "invalid_value"),
    (Flag(), 1, "invalid_type"),
    (Choice(("auto",)), "manual", "unsupported_value"),
    (Choice((False,)), 0, "unsupported_value"),
    (Choice((1,)), True, "unsupported_value"),
    (ListOf(Text(), 2), ["a", "b", "c"], "array_above_max_length"),
    (ListOf(Text(), least=1), [], "array_below_min_length"),
    (ListOf(Text()), "a", "invalid_type"),
    (MapOf(Number(0, 1), 1), {"a": 1, "b": 1}, "object_above_max_size"),
    (MapOf(Number(0, 1), 1), {"a": 2}, "decimal_above_max_value"),
    (MapOf(Text(), 1, Text(2)), {"abc": "x"}, "string_above_max_length"),
    (MapOf(Number(0, 1), 1), [], "invalid_type"),
    (Json(10), {"a": "0123456789"}, "object_above_max_size"),
    (Json(10), [], "invalid_type"),
    (STOPS, 3, "invalid_type"),
    (STOPS, [3], "invalid_type"),
    (STOPS, "toolong", "string_above_max_length"),
    (INNER, {"x": 1, "y": 2}, "unknown_parameter"),
    (INNER, {"x": 1, "old": 2}, "unsupported_parameter"),
    (INNER, {"x": None}, "missing_required_parameter"),
    (INNER, [], "invalid_type"),
    (Tagged("type", {"a": INNER}), {"type": "b"}, "unsupported_value"),
    (Tagged("type", {"a": INNER}), {"x": 1}, "unsupported_value"),
    (Tagged("type", {"a": INNER}), {"type": ["a"], "x": 1}, "unsupported_value"),
]


@pytest.mark.parametrize(("kind", "value", "code"), CASES)
def test_what_does_not_fit_is_refused_by_name(kind: Any, value: Any, code: str) -> None:
    with pytest.raises(ApiError) as caught:
        kind.check(value, "field")
    assert caught.value.code == code
    assert caught.value.status == 400
    assert caught.value.param.startswith("field")
    assert "'field" in caught.value.message
    caught.value.message.encode()


def test_an_object_that_is_nested_too_deeply_is_refused() -> None:
    deepest: Any = {}
    for level in range(MOST_NESTED - 2):
        deepest = {"a": deepest, "b": 1} if level % 2 else [2, deepest]
    assert Json(10**9).check({"a": deepest}, "schema") == {"a": deepest}
    with pytest.raises(ApiError, match="nested too deeply"):
        Json(10**9).check({"a": [deepest]}, "schema")


def test_what_fits_is_read() -> None:
    assert Number(0, 2).check(1, "x") == 1.0
    assert Whole(0, 9).check(3.0, "x") == 3
    assert STOPS.check(["a", "b"], "x") == ["a", "b"]
    assert INNER.check({"x": 3, "old": None}) == {"x": 3}
    tagged = Tagged("type", {"a": INNER}, default="a")
    assert tagged.check({"x": 3}, "x") == {"type": "a", "x": 3}


def test_messages_say_the_limit_and_what_was_received() -> None:
    with pytest.raises(ApiError, match=r"'n' must be at least 1 and at most 9. Received 12\."):
        Whole(1, 9).check(12, "n")
    with pytest.raises(ApiError, match=r"'s' must be 0 to 2 items long. Received 3 items\."):
        ListOf(Text(), 2).check(["a"] * 3, "s")
    with pytest.raises(ApiError, match=r"Received a whole number of more than 20 digits\."):
        Whole(1, 9).check(10**5000, "n")


def test_missing_and_unknown_fields_say_what_to_do() -> None:
    body = Object({"max_tokens": Field(Whole(1, 9), "New tokens.", required=True)})
    for given, message in (
        ({}, "'max_tokens' is missing, and the request needs it."),
        ({"max_token": 3}, "'max_token' is not known .* did you mean 'max_tokens'?"),
        ({"wholly_else": 3}, "'wholly_else' is not known .* leave it out."),
    ):
        with pytest.raises(ApiError, match=message):
            body.check(given)


def test_places_inside_are_named() -> None:
    table = Object({"a": Field(ListOf(INNER))})
    with pytest.raises(ApiError) as caught:
        table.check({"a": [{"x": 1}, {"x": 99}]})
    assert caught.value.param == "a[1].x"


def test_a_name_that_a_client_chose_cannot_break_the_message() -> None:
    with pytest.raises(ApiError) as caught:
        INNER.check({"x": 1, "\ud800" + "y" * 1000: 2})
    assert len(caught.value.message) < 300
    caught.value.message.encode()


def test_schemas_say_the_same() -> None:
    schema = Object({"x": Field(Whole(0, 9), "How many.", 3)}, {"old": "it is gone."}).schema()
    assert schema["additionalProperties"] is False
    number = {"type": "integer", "minimum": 0, "maximum": 9}
    assert schema["properties"]["x"]["anyOf"] == [number, {"type": "null"}]
    assert schema["properties"]["x"]["default"] == 3
    assert schema["properties"]["old"]["type"] == "null"
    assert INNER.schema()["required"] == ["x"]
