"""Roles of a chat that its template does not know: refused where it would drop the message."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from forerun.base.errors import InputError, explain, meant, warn

USUAL = ("system", "developer", "user", "assistant", "tool", "function")
"""Roles of OpenAI's API, of which templates know some."""
ALWAYS = ("user", "assistant")
"""Roles that every template words; some leave out part of what an assistant said."""
MARK = "forerun7mark"  # a word that no template has, and that every way to quote leaves as it is
COMPARED = re.compile(r"""role['"\]]*\s*(?:==|!=|in)\s*[(\[]?((?:\s*,?\s*['"]\w+['"])+)""")
"""Where a template compares a role with names."""


def check_roles(
    chat: Sequence[Mapping[str, Any]],
    text: str,
    template: Any,
    render: Callable[[Sequence[Mapping[str, Any]]], str],
) -> None:
    """Refuse a message that the template drops because of its role; warn of a role that neither
    the template nor anybody else knows.

    text: the chat as the template words it.  template: its source.  render: words another chat.
    """
    named = roles_of(template)
    for number, message in enumerate(chat):
        role, content = message["role"], message.get("content")
        if role in ALWAYS or not isinstance(content, str) or not content.strip():
            continue
        known = list(dict.fromkeys([*ALWAYS, *named]))
        if content.strip() not in text and _is_dropped(chat, number, render):
            wrong = f"The chat template leaves out messages of the role {role!r}."
            cure = f"Use a role that it knows: {', '.join(known)}.{meant(str(role), known)}"
            raise InputError(explain(wrong, f"{dict(message)!r:.80}", cure))
        if role not in (*USUAL, *named):
            question = meant(str(role), [*USUAL, *named])
            warn(
                f"The role {role!r} of a message is none that the chat template names. It is put "
                f"into the prompt as it stands.{question}"
            )


def roles_of(template: Any) -> list[str]:
    """The roles that the source of a template compares with; none where it is no text."""
    if not isinstance(template, str):
        return []
    compared = " ".join(COMPARED.findall(template))
    return list(dict.fromkeys(re.findall(r"\w+", compared)))


def _is_dropped(
    chat: Sequence[Mapping[str, Any]],
    number: int,
    render: Callable[[Sequence[Mapping[str, Any]]], str],
) -> bool:
    """Whether a message of that role leaves no trace, whatever it says, and a user's does."""
    marked = [*chat[:number], {**chat[number], "content": MARK}, *chat[number + 1 :]]
    try:
        return MARK not in render(marked) and MARK in render([{"role": "user", "content": MARK}])
    except Exception:  # of a template that looks into contents: nothing is known then
        return False
