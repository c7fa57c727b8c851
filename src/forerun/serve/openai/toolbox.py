"""`tools` and `tool_choice`: which functions a model is shown, may call, or must call."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from forerun.grammars import Grammar
from forerun.serve.admission.errors import ApiError
from forerun.serve.openai.fields import Choice, Either, Flag, Json, ListOf, Text, wrong_value
from forerun.serve.openai.formats import NAME_LENGTH, compiled, prepared
from forerun.serve.openai.objects import Field, Object, Tagged
from forerun.serve.openai.offer import Offer
from forerun.serve.openai.templates import template_of
from forerun.serve.openai.tools import Writing, writing_of

ANY_OBJECT = {"type": "object"}
NAME = r"[a-zA-Z0-9_.-]+"


def tool_fields(offer: Offer) -> dict[str, Field]:
    """The fields of a chat request for tools; each function is a nested object."""
    limits = offer.limits
    name = Field(Text(NAME_LENGTH, least=1), required=True)
    function = Object(
        {
            "name": name,
            "description": Field(Text()),
            "parameters": Field(Json(limits.max_schema_length), "A JSON schema."),
            "strict": Field(Flag(), "Calls keep to the schema.", False),
        }
    )
    tool = Tagged("type", {"function": Object({"function": Field(function, required=True)})})
    named = Object({"function": Field(Object({"name": name}), required=True)})
    choice = Either(
        (Choice(("none", "auto", "required")), Tagged("type", {"function": named})),
        'a function, or "none", "auto" or "required"',
    )
    return {
        "tools": Field(ListOf(tool, limits.max_tools), "Functions that the model may call."),
        "tool_choice": Field(choice, 'Which is called; "auto" leaves it to the model.'),
        "parallel_tool_calls": Field(Flag(), "Several calls in one answer.", True),
    }


def flat_tool_fields(offer: Offer) -> dict[str, Field]:
    """The fields of a /v1/responses request for tools; a function's fields are beside its type."""
    nested = tool_fields(offer)
    name = Field(Text(NAME_LENGTH, least=1), required=True)
    function = Object(
        {
            "name": name,
            "description": Field(Text()),
            "parameters": Field(Json(offer.limits.max_schema_length), "A JSON schema."),
            "strict": Field(Flag(), "Calls keep to the schema.", False),
        }
    )
    choice = Either(
        (
            Choice(("none", "auto", "required")),
            Tagged("type", {"function": Object({"name": name})}),
        ),
        'a function, or "none", "auto" or "required"',
    )
    tools = ListOf(Tagged("type", {"function": function}), offer.limits.max_tools)
    return {
        "tools": replace(nested["tools"], kind=tools),
        "tool_choice": replace(nested["tool_choice"], kind=choice),
        "parallel_tool_calls": nested["parallel_tool_calls"],
    }


def nested_tools(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The tools of a /v1/responses request in the format of chat requests."""
    choice = fields["tool_choice"]
    if isinstance(choice, Mapping):
        choice = {"type": "function", "function": {"name": choice["name"]}}
    return {
        "tools": [{"type": "function", "function": tool} for tool in fields["tools"] or ()],
        "tool_choice": choice,
        "parallel_tool_calls": fields["parallel_tool_calls"],
    }


def both_format_and_tools(where: str) -> ApiError:
    """The error for a request that wants both a format and tools."""
    message = (
        f"'{where}' cannot be honoured together with 'tools': an answer in that format could not "
        "call one. Leave out one of the two."
    )
    return ApiError(message, param=where, code="unsupported_parameter")


@dataclass(frozen=True)
class Toolbox:
    """The tools of a request.

    shown: the tools that the chat template is given.
    functions: the functions that may be called.
    grammar: forces a call, or the form of calls; None if the model is free.
    """

    shown: Sequence[Mapping[str, Any]] | None = None
    functions: Sequence[Mapping[str, Any]] = ()
    writing: Writing | None = None
    grammar: Grammar | None = None

    @classmethod
    def of(cls, offer: Offer, fields: Mapping[str, Any]) -> Toolbox:
        """Read the tools from a request's fields; raises an `ApiError` for what cannot be
        honoured."""
        tools, choice = fields["tools"] or [], fields["tool_choice"]
        if not tools:
            if choice not in (None, "none", "auto"):
                message = "'tool_choice' asks for a call, but there are no 'tools'."
                raise ApiError(message, param="tool_choice", code="invalid_value")
            return cls()
        functions = [tool["function"] for tool in tools]
        _check_functions(functions)
        writing = _writing(offer, tools)
        shown = [_shown(function) for function in functions]
        if choice == "none":
            return cls(shown)
        is_one = not fields["parallel_tool_calls"]
        is_strict = any(function["strict"] for function in functions)
        is_forced = choice not in (None, "auto")
        grammar = None
        if is_forced or is_strict or is_one:
            callable_ones = _named(functions, choice) if isinstance(choice, Mapping) else functions
            is_one = is_one or isinstance(choice, Mapping)
            grammar = _grammar(writing, callable_ones, is_forced=is_forced, is_one=is_one)
            prepared(offer, grammar, "tools")
        return cls(shown, functions, writing, grammar)

    @property
    def names(self) -> list[str]:
        """The names of the functions that may be called."""
        return [function["name"] for function in self.functions]


def _check_functions(functions: Sequence[Mapping[str, Any]]) -> None:
    """Refuse functions with invalid or repeated names, or with schemas that cannot be compiled."""
    seen: set[str] = set()
    for place, function in enumerate(functions):
        where = f"tools[{place}].function"
        if not re.fullmatch(NAME, function["name"]) or function["name"] in seen:
            limit = "letters, digits, '_', '-' and '.', and unlike the names before it"
            raise wrong_value(function["name"], f"{where}.name", limit)
        seen.add(function["name"])
        if function["parameters"] is not None:
            compiled(function["parameters"], f"{where}.parameters")


def _writing(offer: Offer, tools: Sequence[Mapping[str, Any]]) -> Writing:
    """How this model writes calls, judged by its chat template; refuses models that cannot call."""
    template = template_of(offer, tools)
    if not re.search(r"\btools\b", template):
        reason = "its chat template does not show them to the model"
    elif (writing := writing_of(template)) is not None:
        return writing
    else:
        reason = "its calls are written in a way that is not known here"
    message = f"'tools' cannot be honoured by the model '{offer.name}': {reason}."
    raise ApiError(message, param="tools", code="unsupported_parameter")


def _shown(function: Mapping[str, Any]) -> dict[str, Any]:
    """A tool in the form that templates expect, with only the fields that the client sent."""
    told = ("name", "description", "parameters")
    inner = {name: function[name] for name in told if function[name] is not None}
    return {"type": "function", "function": inner}


def _named(
    functions: Sequence[Mapping[str, Any]], choice: Mapping[str, Any]
) -> list[Mapping[str, Any]]:
    """Only the function that `tool_choice` names, as a list."""
    name = choice["function"]["name"]
    chosen = [function for function in functions if function["name"] == name]
    if not chosen:
        listed = " or ".join(f"'{function['name']}'" for function in functions)
        raise wrong_value(name, "tool_choice.function.name", f"one of the tools, {listed}")
    return chosen


def _grammar(
    writing: Writing, functions: Sequence[Mapping[str, Any]], *, is_forced: bool, is_one: bool
) -> Grammar:
    """The grammar of calls. Forced calls must match their schemas; if the model is free to call,
    only strict functions must."""
    schemas = [
        {
            "name": function["name"],
            "parameters": function["parameters"]
            if is_forced or function["strict"] or function["parameters"] is None
            else ANY_OBJECT,
        }
        for function in functions
    ]
    try:
        return writing.grammar(schemas, is_forced=is_forced, is_one=is_one)
    except ValueError as error:
        message = "'tools' cannot be compiled together. Make their schemas simpler."
        raise ApiError(message, param="tools", code="invalid_json_schema") from error
