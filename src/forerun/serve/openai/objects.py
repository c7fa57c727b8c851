"""Objects with named fields: what is not in the table is an error that names it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from forerun.serve.admission.errors import ApiError
from forerun.serve.openai.fields import Kind, Schema, safe, wrong_type, wrong_value


@dataclass(frozen=True)
class Field:
    """One field of an object; null counts as left out."""

    kind: Kind
    about: str = ""
    default: Any = None
    required: bool = False


@dataclass(frozen=True)
class Object:
    """An object whose fields are those of a table and no others.

    refused: fields of OpenAI that cannot be honoured, each with the reason; null is harmless.
    """

    fields: Mapping[str, Field]
    refused: Mapping[str, str] = field(default_factory=dict)

    def fits(self, value: Any) -> bool:
        return isinstance(value, Mapping)

    def check(self, value: Any, where: str = "") -> dict[str, Any]:
        """The values of all fields by name, with defaults for those left out."""
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
        """The error for a field that is not in the table, with the reason or the nearest name."""
        where = inside + safe(str(name))
        if reason := self.refused.get(name):
            message = f"'{where}' cannot be honoured: {reason}"
            return ApiError(message, param=where, code="unsupported_parameter")
        near = get_close_matches(str(name)[:80], list(self.fields), 1)
        cure = f"did you mean '{near[0]}'?" if near else "leave it out."
        message = f"'{where}' is not known here, and nothing is ignored: {cure}"
        return ApiError(message, param=where, code="unknown_parameter")

    def schema(self) -> Schema:
        """The table as JSON Schema; refused fields may be null."""
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
    """One of several objects, told apart by a field such as "type"."""

    tag: str
    options: Mapping[str, Object]
    default: str | None = None  # where the tag may be left out

    def fits(self, value: Any) -> bool:
        return isinstance(value, Mapping)

    def check(self, value: Any, where: str) -> dict[str, Any]:
        """The fields of the object that the tag names, the tag included."""
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
        """The schema of one of the objects, with its tag."""
        schema = option.schema()
        tag: Schema = {"const": name} if name != self.default else {"enum": [name, None]}
        required = [self.tag] if name != self.default else []
        return {
            **schema,
            "properties": {self.tag: tag, **schema["properties"]},
            "required": [*required, *schema.get("required", [])],
        }


def _property(entry: Field) -> Schema:
    """The schema of a field; one that may be left out may be null."""
    schema = entry.kind.schema()
    if not entry.required:
        schema = {"anyOf": [*schema.get("anyOf", [schema]), {"type": "null"}]}
        if entry.default is not None:
            schema["default"] = entry.default
    return {**schema, "description": entry.about} if entry.about else schema
