"""`response_format`: free text, any JSON object, or JSON by a schema."""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from forerun.generation.intake import ending_tokens
from forerun.grammars import Grammar, json_object, json_schema
from forerun.serve.admission.errors import ApiError
from forerun.serve.openai.fields import Flag, Json, Text
from forerun.serve.openai.objects import Field, Object, Tagged
from forerun.serve.openai.offer import Offer

NAME_LENGTH = 64
MOST_MULTIPLE = 10_000
"""Of all `multipleOf` of a schema together: compiling takes a state for each remainder."""


def chat_format(offer: Offer) -> Tagged:
    """As chat completions have it: the schema inside an object of its own."""
    inner = Field(Object(_schema_fields(offer)), required=True)
    return Tagged("type", {**_PLAIN, "json_schema": Object({"json_schema": inner})})


def flat_format(offer: Offer) -> Tagged:
    """As responses have it: the schema beside its type."""
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
    """The grammar of a format; None for free text."""
    if chosen is None or chosen["type"] == "text":
        return None
    details = chosen.get("json_schema", chosen)
    schema = details.get("schema")
    if schema is None:
        return prepared(offer, json_object(), where)
    inside = f"{where}.json_schema.schema" if "json_schema" in chosen else f"{where}.schema"
    return prepared(offer, compiled(schema, inside), inside)


def compiled(schema: Mapping[str, Any], where: str) -> Grammar:
    """A JSON schema as a grammar, or what is wrong with it."""
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
    """The grammar, compiled for the model's tokenizer: engines find it ready."""
    target, last = offer.target, offer.tokenizer.eos_token_id
    endings = ending_tokens(target) or (() if last is None else (last,))
    try:
        grammar.matcher(offer.tokenizer, target.vocab_size, endings)
    except ValueError as error:
        raise ApiError(str(error), param=where, code=code) from error
    return grammar


def _common_multiple(schema: Any) -> int:
    """The least common multiple of every `multipleOf` in a schema, without their powers of ten."""
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
