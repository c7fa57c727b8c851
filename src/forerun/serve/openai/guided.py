"""Guided answers as vLLM spells them: by a schema, a regular expression, a choice or a grammar."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from forerun.grammars import Grammar, json_object, lark, regex
from forerun.serve.admission.errors import ApiError
from forerun.serve.openai.fields import Choice, Either, Json, ListOf, Text
from forerun.serve.openai.formats import compiled, grammar_of, prepared
from forerun.serve.openai.objects import Field, Object
from forerun.serve.openai.offer import Offer

WAYS = ("json", "regex", "choice", "grammar")
MOST_CHOICES = 256


def guided_fields(offer: Offer) -> dict[str, Field]:
    """Each way under its older name, and all of them in `structured_outputs`."""
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
    """The grammar of `response_format` or of a guided answer; only one of them may be there."""
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
    """A schema, which may come as JSON text."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            value = None
    if not isinstance(value, Mapping):
        message = f"'{where}' must be a JSON schema, or the JSON text of one."
        raise ApiError(message, param=where, code="invalid_value")
    return value
