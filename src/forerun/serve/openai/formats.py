"""The format of an answer: `response_format`, or vLLM's fields for guided decoding."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from forerun.generation.intake import ending_tokens, refuse_empty
from forerun.grammars import Grammar, json_object, json_schema, lark, regex
from forerun.grammars.base import Cursor
from forerun.serve.admission.errors import ApiError
from forerun.serve.openai.fields import Choice, Either, Flag, Json, ListOf, Text
from forerun.serve.openai.objects import Field, Object, Tagged
from forerun.serve.openai.offer import Offer

NAME_LENGTH = 64
MOST_MULTIPLE = 10_000
"""The largest product of all `multipleOf` of a schema: compiling takes a state for each
remainder."""


def chat_format(offer: Offer) -> Tagged:
    """The field `response_format` of chat completions, with the schema in a nested object."""
    inner = Field(Object(_schema_fields(offer)), required=True)
    return Tagged("type", {**_PLAIN, "json_schema": Object({"json_schema": inner})})


def flat_format(offer: Offer) -> Tagged:
    """The field `text.format` of responses, with the schema beside its type."""
    return Tagged("type", {**_PLAIN, "json_schema": Object(_schema_fields(offer))})


_PLAIN = {"text": Object({}), "json_object": Object({})}


def _schema_fields(offer: Offer) -> dict[str, Field]:
    return {
        "name": Field(Text(NAME_LENGTH, least=1), "A label of the client's own."),
        "description": Field(Text(), "A label too: the model is not shown it."),
        "schema": Field(Json(offer.limits.max_schema_length), "Any JSON object if left out."),
        "strict": Field(Flag(), "The schema is kept to in either case."),
    }


def grammar_of(offer: Offer, chosen: Mapping[str, Any] | None, where: str) -> Grammar | None:
    """The grammar that a format asks for; None for free text."""
    if chosen is None or chosen["type"] == "text":
        return None
    details = chosen.get("json_schema", chosen)
    schema = details.get("schema")
    if schema is None:
        return prepared(offer, json_object(), where)
    inside = f"{where}.json_schema.schema" if "json_schema" in chosen else f"{where}.schema"
    return prepared(offer, compiled(schema, inside), inside)


def compiled(schema: Mapping[str, Any], where: str) -> Grammar:
    """A grammar for a JSON schema; raises an `ApiError` that says what is wrong with the schema."""
    if _common_multiple(schema) > MOST_MULTIPLE:
        message = (
            f"'{where}' would take too long to compile: the least common multiple of the values of "
            f"'multipleOf' in it, powers of ten aside, exceeds {MOST_MULTIPLE}. Use smaller ones."
        )
        raise ApiError(message, param=where, code="invalid_json_schema")
    try:
        return json_schema(schema)
    except ValueError as error:  # an InputError, or llguidance's own where the nesting is too deep
        raise ApiError(str(error), param=where, code="invalid_json_schema") from error


def prepared(
    offer: Offer, grammar: Grammar, where: str, code: str = "invalid_json_schema"
) -> Grammar:
    """The grammar, compiled in advance for the model's tokenizer, so that engines need not compile
    it; refused if it allows no text, or only an empty one."""
    target, last = offer.target, offer.tokenizer.eos_token_id
    endings = ending_tokens(target) or (() if last is None else (last,))
    try:
        cursor = Cursor(lambda: grammar.matcher(offer.tokenizer, target.vocab_size, endings))
        refuse_empty(grammar, cursor, target.vocab_size, endings)
    except ValueError as error:
        raise ApiError(str(error), param=where, code=code) from error
    return grammar


def _common_multiple(schema: Any) -> int:
    """The least common multiple of all `multipleOf` values in a schema, ignoring powers of ten."""
    common, remaining = 1, [schema]
    while remaining and common <= MOST_MULTIPLE:
        part = remaining.pop()
        if isinstance(part, Mapping):
            value = part.get("multipleOf")
            if isinstance(value, int | float) and value and math.isfinite(value):
                digits = Decimal(repr(value)).normalize().as_tuple().digits
                common = math.lcm(common, int("".join(map(str, digits))))
            remaining.extend(part.values())
        elif isinstance(part, list):
            remaining.extend(part)
    return common


WAYS = ("json", "regex", "choice", "grammar")
MOST_CHOICES = 256


def guided_fields(offer: Offer) -> dict[str, Field]:
    """The fields for guided decoding: one per kind of guide, and all kinds inside
    `structured_outputs`."""
    most = offer.limits.max_schema_length
    text = Text(most, least=1)
    ways = {
        "json": Field(Either((Json(most), text), "a schema, or its text"), "A JSON schema."),
        "regex": Field(text, "A regular expression, in the syntax of Rust's `regex`."),
        "choice": Field(ListOf(Text(least=1), MOST_CHOICES, 1), "One of these texts."),
        "grammar": Field(text, "A grammar in llguidance's variant of the Lark syntax."),
    }
    one_of_them = Object({**ways, "json_object": Field(Choice((True,)), "Any JSON object.")})
    return {
        **{f"guided_{name}": way for name, way in ways.items()},
        "structured_outputs": Field(one_of_them, "One way in which the answer is guided."),
    }


def guided_by(offer: Offer, fields: Mapping[str, Any]) -> Grammar | None:
    """The grammar from `response_format` or from a field for guided decoding; more than one is
    refused."""
    asked = {f"guided_{name}": (name, fields[f"guided_{name}"]) for name in WAYS}
    for name, value in (fields["structured_outputs"] or {}).items():
        asked[f"structured_outputs.{name}"] = (name, value)
    given = {where: way for where, way in asked.items() if way[1] is not None}
    chosen = fields["response_format"]
    if len(given) + (chosen is not None) > 1:
        where = next(iter(given))
        message = f"'{where}' is one of several ways to guide the answer. Leave out all but one."
        raise ApiError(message, param=where, code="invalid_value")
    for where, (name, value) in given.items():
        return _grammar(offer, name, value, where)
    return grammar_of(offer, chosen, "response_format")


def _grammar(offer: Offer, name: str, value: Any, where: str) -> Grammar:
    """The grammar for one field for guided decoding."""
    if name == "json":
        return prepared(offer, compiled(_schema(value, where), where), where)
    if name == "json_object":
        return prepared(offer, json_object(), where)
    try:
        if name == "regex":
            grammar = regex(value)
        elif name == "grammar":
            grammar = lark(value)
        else:
            grammar = lark("start: " + " | ".join(json.dumps(text) for text in value))
    except ValueError as error:
        raise ApiError(str(error), param=where, code="invalid_grammar") from error
    return prepared(offer, grammar, where, "invalid_grammar")


def _schema(value: Any, where: str) -> Mapping[str, Any]:
    """A JSON schema; it may be given as JSON text."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            value = None
    if not isinstance(value, Mapping):
        message = f"'{where}' must be a JSON schema, or the JSON text of one."
        raise ApiError(message, param=where, code="invalid_value")
    return value
