"""Grammars: what a text must look like, token by token, inside drafts as well."""

from forerun.grammars.base import Cursor, Grammar, Matcher
from forerun.grammars.guided import json_object, json_schema, lark, regex

__all__ = [
    "Cursor",
    "Grammar",
    "Matcher",
    "json_object",
    "json_schema",
    "lark",
    "regex",
]


def __dir__() -> list[str]:
    """The names that are meant for others."""
    return __all__
