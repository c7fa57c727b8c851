"""JSON objects: parsed from bytes, and checked against a table of fields.

A field that is not in the table is an error that names it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from forerun.serve.admission.errors import ApiError
from forerun.serve.openai.fields import Kind, Schema, safe, wrong_type, wrong_value


@dataclass(frozen=True)
class Field:
    """One field of an object; null counts as absent."""

    kind: Kind
    about: str = ""
    default: Any = None
    required: bool = False


@dataclass(frozen=True)
class Object:
    """An object with the fields of a table and no others.

    refused: OpenAI's fields that cannot be honoured, each with the reason; null is accepted for
    them.
    """

    fields: Mapping[str, Field]
    refused: Mapping[str, str] = field(default_factory=dict)

    def fits(self, value: Any) -> bool:
        return isinstance(value, Mapping)

    def check(self, value: Any, where: str = "") -> dict[str, Any]:
        """The values of all fields by name, with defaults for those that are absent."""
        if not isinstance(value, Mapping):
            raise wrong_type(value, where or "body", "an object")
        inside = f"{where}." if where else ""
        for name, item in value.items():
            if name not in self.fields and not (item is None and name in self.refused):
                raise self._unknown(name, inside)
        read = {}
        for name, entry in self.fields.items():
            item = value.get(name)
            if item is not None:
                read[name] = entry.kind.check(item, inside + name)
            elif entry.required:
                message = f"'{inside}{name}' is missing, and the request needs it."
                raise ApiError(message, param=inside + name, code="missing_required_parameter")
            else:
                read[name] = entry.default
        return read

    def _unknown(self, name: str, inside: str) -> ApiError:
        """The error for a field that is not in the table: the reason why it is refused, or the most
        similar name."""
        where = inside + safe(str(name))
        if reason := self.refused.get(name):
            message = f"'{where}' cannot be honoured: {reason}"
            return ApiError(message, param=where, code="unsupported_parameter")
        near = get_close_matches(str(name)[:80], list(self.fields), 1)
        cure = f"did you mean '{near[0]}'?" if near else "leave it out."
        message = f"'{where}' is not known here, and nothing is ignored: {cure}"
        return ApiError(message, param=where, code="unknown_parameter")

    def schema(self) -> Schema:
        """The table as JSON Schema. Refused fields may only be null."""
        properties = {name: _property(entry) for name, entry in self.fields.items()}
        for name, reason in self.refused.items():
            properties[name] = {"type": "null", "description": f"Refused: {reason}"}
        required = [name for name, entry in self.fields.items() if entry.required]
        schema: Schema = {
            "type": "object",
            "properties": properties,
            "additionalProperties": False,
        }
        return {**schema, "required": required} if required else schema


@dataclass(frozen=True)
class Tagged:
    """One of several kinds of object; a field such as "type" says which."""

    tag: str
    options: Mapping[str, Object]
    default: str | None = None  # where the tag may be left out

    def fits(self, value: Any) -> bool:
        return isinstance(value, Mapping)

    def check(self, value: Any, where: str) -> dict[str, Any]:
        """Check a value as the object that its tag names. Returns its fields, including the tag."""
        if not isinstance(value, Mapping):
            raise wrong_type(value, where, "an object")
        tag = value.get(self.tag)
        chosen = self.default if tag is None else tag
        if not isinstance(chosen, str) or chosen not in self.options:
            listed = " or ".join(f'"{option}"' for option in self.options)
            raise wrong_value(tag, f"{where}.{self.tag}", listed, "unsupported_value")
        rest = {name: item for name, item in value.items() if name != self.tag}
        return {self.tag: chosen, **self.options[chosen].check(rest, where)}

    def schema(self) -> Schema:
        return {"anyOf": [self._option(name, option) for name, option in self.options.items()]}

    def _option(self, name: str, option: Object) -> Schema:
        """The schema of one of the objects, including its tag."""
        schema = option.schema()
        tag: Schema = {"const": name} if name != self.default else {"enum": [name, None]}
        required = [self.tag] if name != self.default else []
        return {
            **schema,
            "properties": {self.tag: tag, **schema["properties"]},
            "required": [*required, *schema.get("required", [])],
        }


def _property(entry: Field) -> Schema:
    """The schema of a field; null is allowed unless the field is required."""
    schema = entry.kind.schema()
    if not entry.required:
        schema = {"anyOf": [*schema.get("anyOf", [schema]), {"type": "null"}]}
        if entry.default is not None:
            schema["default"] = entry.default
    return {**schema, "description": entry.about} if entry.about else schema


def parse_object(body: bytes, max_values: int | None = None) -> dict[str, Any]:
    """Parse a JSON object; refuses what JSON leaves undefined, such as NaN or a repeated key.

    max_values: a body with more values is refused before it is parsed; each string, list and object
    counts as `WEIGHT` values.
    """
    if max_values is not None and _has_more_values(body, max_values):
        message = (
            f"The body holds more than the {max_values} JSON values that this server reads; a "
            f"text, a list and an object count as {WEIGHT}."
        )
        raise ApiError(message, code="too_many_values")
    try:
        parsed = json.loads(
            body.decode("utf-8"), parse_constant=_no_constant, object_pairs_hook=_without_repeats
        )
        if b"\\u" in body:
            json.dumps(parsed, ensure_ascii=False).encode("utf-8")  # no halves of characters
    except RecursionError as error:
        raise no_json("it is nested too deeply") from error
    except UnicodeEncodeError as error:
        raise no_json("a text in it has a lone surrogate, half of a character") from error
    except UnicodeDecodeError as error:
        raise no_json("it is no UTF-8") from error
    except json.JSONDecodeError as error:
        raise no_json(f"{error.msg} at character {error.pos}") from error
    except ValueError as error:  # a number with thousands of digits
        raise no_json("a number in it is too long") from error
    if not isinstance(parsed, dict):
        raise no_json("it is no object")
    return parsed


WEIGHT = 4
"""Reading one text, list or object takes as long as reading this many numbers."""


def _has_more_values(body: bytes, most: int) -> bool:
    """Whether a body holds more values than this, estimated from its punctuation in a few
    milliseconds."""
    if _weight(body, body.count(b'"') // 2) <= most:
        return False
    if b"\\" in body:
        body = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    num_texts = body.count(b'"') // 2
    return WEIGHT * num_texts > most or _weight(b"".join(body.split(b'"')[::2]), num_texts) > most


def _weight(signs: bytes, num_texts: int) -> int:
    num_nested = signs.count(b"[") + signs.count(b"{")
    return signs.count(b",") + WEIGHT * (num_texts + num_nested)


def _no_constant(name: str) -> Any:
    raise no_json(f"{name} is no JSON number")


def _without_repeats(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    parsed = dict(pairs)
    if len(parsed) < len(pairs):
        raise no_json("a key occurs twice in one object")
    return parsed


def no_json(reason: str) -> ApiError:
    """The error for a body that is not a JSON object."""
    return ApiError(f"The body is not a valid JSON object: {reason}.", code="invalid_json")
