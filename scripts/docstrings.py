"""Docstrings as Markdown: lines like `prompt: text, or token ids` become the items of a list."""

from __future__ import annotations

import re
from typing import Any

import griffe

ARGUMENT = re.compile(r"^((?:[a-z]\w*, )*[a-z]\w*): ")


class Lists(griffe.Extension):
    """Arguments of a function, or fields of a class, are listed one per line in our docstrings."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = listed(obj.docstring.value)


def listed(text: str) -> str:
    """The text, with a blank line before the first argument and a dash before each."""
    lines: list[str] = []
    for line in text.split("\n"):
        match = ARGUMENT.match(line)
        if match and lines and (lines[-1] == "" or lines[-1].startswith(("- ", "    "))):
            line = f"- **{match[1]}**{line[match.end(1) :]}"
        lines.append(line)
    return "\n".join(lines)
