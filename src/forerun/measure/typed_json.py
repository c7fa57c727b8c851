"""Converts JSON to dataclasses and checks every type.

A file that was cut, edited or written by another version must fail when it is read, not in a
strange plot an hour later.  Only a field with a default may be missing: it was added after the
file was written.
"""

from __future__ import annotations

import math
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints


def build(kind: Any, value: Any, where: str = "it") -> Any:
    """`value` as a `kind`: a dataclass, a list, dict or union of such, or a plain value.

    Raises ValueError that says where they differ.
    """
    origin, parts = get_origin(kind), get_args(kind)
    if is_dataclass(kind) and isinstance(kind, type):
        return _build_dataclass(kind, value, where)
    if origin in (Union, UnionType):
        return _build_union(parts, value, where)
    if origin is Literal:
        return _checked(value in parts, value, f"one of {list(parts)}", where)
    if origin is list:
        _checked(isinstance(value, list), value, "a list", where)
        return [build(parts[0], item, f"{where}[{i}]") for i, item in enumerate(value)]
    if origin is dict:
        _checked(isinstance(value, dict), value, "an object", where)
        return {key: build(parts[1], item, f"{where}.{key}") for key, item in value.items()}
    if kind is float:
        fine = isinstance(value, int | float) and not isinstance(value, bool)
        return float(_checked(fine and math.isfinite(value), value, "a number", where))
    fine = isinstance(value, kind) and not (kind is int and isinstance(value, bool))
    return _checked(fine, value, kind.__name__, where)


def _build_dataclass(kind: Any, value: Any, where: str) -> Any:
    _checked(isinstance(value, dict), value, "an object", where)
    hints = _hints(kind)
    known = set(hints)
    needed = {field.name for field in fields(kind) if not _has_default(field)}
    if missing := sorted(needed - set(value)):
        raise ValueError(f"{where} lacks {', '.join(missing)}")
    if unknown := sorted(set(value) - known):
        raise ValueError(f"{where} has unknown fields: {', '.join(unknown)}")
    return kind(**{name: build(hints[name], value[name], f"{where}.{name}") for name in value})


@cache
def _hints(kind: Any) -> dict[str, Any]:
    """Types by field, cached: looking them up takes longer than the rest of a line."""
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def _has_default(field: Field[Any]) -> bool:
    return field.default is not MISSING or field.default_factory is not MISSING


def _build_union(parts: tuple[Any, ...], value: Any, where: str) -> Any:
    if value is None and NoneType in parts:
        return None
    others = [part for part in parts if part is not NoneType]
    if len(others) == 1:
        return build(others[0], value, where)
    for part in others:
        try:
            return build(part, value, where)
        except ValueError:
            continue
    raise ValueError(f"{where} is {value!r}, which fits none of its types")


def _checked(fine: bool, value: Any, expected: str, where: str) -> Any:
    if not fine:
        raise ValueError(f"{where} is {str(value)[:40]!r} and not {expected}")
    return value
