"""Kinds of JSON values: each checks a client's value, and describes itself as JSON Schema.

A route is a table of fields. Every field of a body must be in the table, so none is silently
ignored, and the OpenAPI document is made from the same table.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from forerun.serve.admission.errors import ApiError

Schema = dict[str, Any]


class Kind(Protocol):
    """A kind of JSON value, such as a number in a range."""

    def fits(self, value: Any) -> bool:
        """Whether a value looks like this kind, judging by its type and that of its first item."""
        ...

    def check(self, value: Any, where: str) -> Any:
        """The value in the form that the server uses; raises an `ApiError` that names the field
        `where` if the value is not of this kind."""
        ...

    def schema(self) -> Schema:
        """The JSON Schema of this kind."""
        ...


@dataclass(frozen=True)
class Number:
    """A number in a range; booleans are refused."""

    low: float
    high: float
    above_low: bool = False  # the least number itself is left out

    def fits(self, value: Any) -> bool:
        return isinstance(value, int | float) and not isinstance(value, bool)

    def check(self, value: Any, where: str) -> float:
        if not self.fits(value):
            raise wrong_type(value, where, "a number")
        too_low = value <= self.low if self.above_low else value < self.low
        if too_low or not value <= self.high:  # NaN as well
            least = f"above {self.low}" if self.above_low else f"at least {self.low}"
            way = "below_min" if too_low else "above_max"
            raise wrong_value(
                value, where, f"{least} and at most {self.high}", f"decimal_{way}_value"
            )
        return float(value)

    def schema(self) -> Schema:
        low = "exclusiveMinimum" if self.above_low else "minimum"
        return {"type": "number", low: self.low, "maximum": self.high}


@dataclass(frozen=True)
class Whole:
    """A whole number in a range; 3.0 is accepted, as in JSON Schema."""

    low: int
    high: int

    def fits(self, value: Any) -> bool:
        is_float = isinstance(value, float) and math.isfinite(value) and value.is_integer()
        return is_float or (isinstance(value, int) and not isinstance(value, bool))

    def check(self, value: Any, where: str) -> int:
        if not self.fits(value):
            raise wrong_type(value, where, "a whole number")
        if not self.low <= value <= self.high:
            way = "below_min" if value < self.low else "above_max"
            limit = f"at least {self.low} and at most {self.high}"
            raise wrong_value(value, where, limit, f"integer_{way}_value")
        return int(value)

    def schema(self) -> Schema:
        return {"type": "integer", "minimum": self.low, "maximum": self.high}


@dataclass(frozen=True)
class Text:
    """A string of valid Unicode."""

    most: int | None = None  # characters
    least: int = 0

    def fits(self, value: Any) -> bool:
        return isinstance(value, str)

    def check(self, value: Any, where: str) -> str:
        if not isinstance(value, str):
            raise wrong_type(value, where, "a text")
        if len(value) < self.least or (self.most is not None and len(value) > self.most):
            limit = _length(self.least, self.most, "characters")
            way = "below_min" if len(value) < self.least else "above_max"
            received = f"{len(value)} characters"
            raise wrong_size(received, where, limit, f"string_{way}_length")
        try:
            value.encode()
        except UnicodeEncodeError:
            message = f"'{where}' holds half of a surrogate pair, which is no character."
            raise ApiError(message, param=where, code="invalid_value") from None
        return value

    def schema(self) -> Schema:
        schema: Schema = {"type": "string"}
        if self.least:
            schema["minLength"] = self.least
        return schema if self.most is None else {**schema, "maxLength": self.most}


@dataclass(frozen=True)
class Flag:
    """A boolean."""

    def fits(self, value: Any) -> bool:
        return isinstance(value, bool)

    def check(self, value: Any, where: str) -> bool:
        if not isinstance(value, bool):
            raise wrong_type(value, where, "true or false")
        return value

    def schema(self) -> Schema:
        return {"type": "boolean"}


@dataclass(frozen=True)
class Choice:
    """One of a few given strings, numbers or booleans."""

    values: tuple[Any, ...]

    def fits(self, value: Any) -> bool:
        return any(type(value) is type(choice) and value == choice for choice in self.values)

    def check(self, value: Any, where: str) -> Any:
        if not self.fits(value):
            listed = " or ".join(json.dumps(choice) for choice in self.values)
            raise wrong_value(value, where, listed or "left out", "unsupported_value")
        return value

    def schema(self) -> Schema:
        return {"enum": list(self.values)}


@dataclass(frozen=True)
class ListOf:
    """A list of values of one kind."""

    item: Kind
    most: int | None = None
    least: int = 0

    def fits(self, value: Any) -> bool:
        return isinstance(value, list) and (not value or self.item.fits(value[0]))

    def check(self, value: Any, where: str) -> list[Any]:
        if not isinstance(value, list):
            raise wrong_type(value, where, "a list")
        if len(value) < self.least or (self.most is not None and len(value) > self.most):
            limit = _length(self.least, self.most, "items")
            way = "below_min" if len(value) < self.least else "above_max"
            raise wrong_size(f"{len(value)} items", where, limit, f"array_{way}_length")
        return [self.item.check(item, f"{where}[{place}]") for place, item in enumerate(value)]

    def schema(self) -> Schema:
        schema: Schema = {"type": "array", "items": self.item.schema()}
        if self.least:
            schema["minItems"] = self.least
        return schema if self.most is None else {**schema, "maxItems": self.most}


@dataclass(frozen=True)
class MapOf:
    """An object with any string keys, and values of one kind."""

    item: Kind
    most: int
    keys: Text = Text()
    pattern: str | None = None  # of the keys, in the schema; whoever reads them checks it

    def fits(self, value: Any) -> bool:
        return isinstance(value, Mapping)

    def check(self, value: Any, where: str) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise wrong_type(value, where, "an object")
        if len(value) > self.most:
            received = f"{len(value)} keys"
            raise wrong_size(received, where, f"at most {self.most} keys", "object_above_max_size")
        return {
            self.keys.check(key, where): self.item.check(item, f"{where}.{safe(key)}")
            for key, item in value.items()
        }

    def schema(self) -> Schema:
        """The JSON Schema of such an object."""
        schema: Schema = {
            "type": "object",
            "additionalProperties": self.item.schema(),
            "maxProperties": self.most,
        }
        if self.pattern is not None:
            schema["propertyNames"] = {"pattern": self.pattern}
        elif self.keys.most is not None:
            schema["propertyNames"] = {"maxLength": self.keys.most}
        return schema


MOST_NESTED = 200
"""The most levels of nesting in an object that is passed on, because the code that reads it next
may be recursive."""


def is_nested_deeper(value: Any, limit: int) -> bool:
    """Whether objects and lists are nested in more than this many levels."""
    level = [value]
    for _ in range(limit):
        level = [inner for one in level if isinstance(one, dict | list) for inner in _inside(one)]
        if not level:
            return False
    return any(isinstance(one, dict | list) for one in level)


def _inside(value: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value


@dataclass(frozen=True)
class Json:
    """A JSON object that is passed on unchanged, such as a JSON schema; only its size is
    checked."""

    most: int  # characters, written as JSON

    def fits(self, value: Any) -> bool:
        return isinstance(value, Mapping)

    def check(self, value: Any, where: str) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise wrong_type(value, where, "an object")
        if is_nested_deeper(value, MOST_NESTED):
            message = f"'{where}' is nested too deeply, in more than {MOST_NESTED} levels."
            raise ApiError(message, param=where, code="invalid_value")
        size = len(json.dumps(value))
        if size > self.most:
            limit = f"at most {self.most} characters of JSON"
            raise wrong_size(f"{size} characters", where, limit, "object_above_max_size")
        return dict(value)

    def schema(self) -> Schema:
        return {"type": "object"}


@dataclass(frozen=True)
class Either:
    """One of several kinds; the first kind that the value looks like is used."""

    kinds: tuple[Kind, ...]
    words: str  # "a text or a list of texts"

    def fits(self, value: Any) -> bool:
        return any(kind.fits(value) for kind in self.kinds)

    def check(self, value: Any, where: str) -> Any:
        for kind in self.kinds:
            if kind.fits(value):
                return kind.check(value, where)
        raise wrong_type(value, where, self.words)

    def schema(self) -> Schema:
        return {"anyOf": [kind.schema() for kind in self.kinds]}


def wrong_type(value: Any, where: str, expected: str) -> ApiError:
    """The error for a value of the wrong type."""
    message = f"'{where}' has a wrong type: it must be {expected}. Received {shown(value)}."
    return ApiError(message, param=where, code="invalid_type")


def wrong_value(value: Any, where: str, limit: str, code: str = "invalid_value") -> ApiError:
    """The error for a value that is not allowed."""
    message = f"'{where}' must be {limit}. Received {shown(value)}."
    return ApiError(message, param=where, code=code)


def wrong_size(received: str, where: str, limit: str, code: str) -> ApiError:
    """The error for a value that is too long or too short."""
    message = f"'{where}' must be {limit}. Received {received}."
    return ApiError(message, param=where, code=code)


def shown(value: Any, most: int = 80) -> str:
    """The beginning of a value as JSON, in ASCII, for an error message."""
    if isinstance(value, Mapping | list):
        what = "object" if isinstance(value, Mapping) else "list"
        return f"{'an' if what == 'object' else 'a'} {what} of {len(value)}"
    if isinstance(value, int) and abs(value) >= 10**20:
        return "a whole number of more than 20 digits"
    text = json.dumps(value[:most] if isinstance(value, str) else value)
    return text if len(text) <= most else text[:most] + " ..."


def safe(name: str, most: int = 80) -> str:
    """A name that a client chose, made ASCII and short, so that messages can repeat it."""
    return name.encode("ascii", "backslashreplace").decode()[:most]


def _length(least: int, most: int | None, unit: str) -> str:
    return f"{least} to {most} {unit} long" if most is not None else f"at least {least} {unit} long"


@dataclass(frozen=True)
class TokenIds:
    """Token ids of the vocabulary, at most as many as the context holds.

    The length is checked first, then all ids at once; they are checked one by one only to find the
    wrong one for the message.
    """

    vocab_size: int
    most: int | None  # what the context holds
    least: int = 0

    @property
    def _id(self) -> Whole:
        return Whole(0, self.vocab_size - 1)

    def fits(self, value: Any) -> bool:
        return isinstance(value, list) and (not value or self._id.fits(value[0]))

    def check(self, value: Any, where: str) -> list[int]:
        if not isinstance(value, list):
            raise wrong_type(value, where, "a list")
        if len(value) < self.least:
            limit = f"at least {self.least} items long"
            raise wrong_size(f"{len(value)} items", where, limit, "array_below_min_length")
        if self.most is not None and len(value) > self.most:
            message = (
                f"This model's context is {self.most} tokens, and '{where}' is {len(value)} "
                "tokens long. Shorten it."
            )
            raise ApiError(message, param=where, code="context_length_exceeded")
        if set(map(type, value)) <= {int} and (
            not value or (min(value) >= 0 and max(value) < self.vocab_size)
        ):
            return value
        return [self._id.check(item, f"{where}[{place}]") for place, item in enumerate(value)]

    def schema(self) -> Schema:
        schema: Schema = {"type": "array", "items": self._id.schema()}
        if self.least:
            schema["minItems"] = self.least
        return schema if self.most is None else {**schema, "maxItems": self.most}
