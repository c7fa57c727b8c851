"""Grammars that restrict texts token by token, also inside drafts."""

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
    """The public names of this package."""
    return __all__
