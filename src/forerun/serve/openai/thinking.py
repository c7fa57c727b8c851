"""Models that think before they answer: the options for this, and separating thoughts from the
answer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from forerun.serve.admission.errors import ApiError
from forerun.serve.openai.fields import Choice, Flag, Json, safe
from forerun.serve.openai.objects import Field

OPEN, CLOSE = "<think>", "</think>"
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")
RESERVED = frozenset(
    {
        *("messages", "tools", "documents", "tokenize", "chat_template", "conversation"),
        *("add_generation_prompt", "continue_final_message", "return_tensors", "return_dict"),
    }
)
MOST_OPTIONS = 4_096  # characters of `chat_template_kwargs`


@dataclass(frozen=True)
class Thought:
    """A part of a model's thoughts."""

    text: str


def thinking_fields() -> dict[str, Field]:
    """The fields that say whether and how much a model thinks before it answers."""
    return {
        "chat_template_kwargs": Field(
            Json(MOST_OPTIONS), "Variables of the model's chat template, by name."
        ),
        "enable_thinking": Field(Flag(), "Whether the model thinks before it answers."),
        "reasoning_effort": Field(
            Choice(EFFORTS),
            "Where the template knows no efforts: none is without thinking, others are with it.",
        ),
    }


def template_options(
    template: str, fields: Mapping[str, Any], effort_field: str = "reasoning_effort"
) -> dict[str, Any]:
    """The template variables that a request sets; refused if the template does not read them."""
    options = dict(fields.get("chat_template_kwargs") or {})
    for name in options:
        if name in RESERVED or not _reads(template, name):
            raise _unread(f"chat_template_kwargs.{safe(name)}")
    asked = {"enable_thinking": fields.get("enable_thinking"), "reasoning_effort": None}
    effort = fields.get("reasoning_effort")
    if _reads(template, "reasoning_effort"):
        asked["reasoning_effort"] = effort
    elif effort is not None:
        if not _reads(template, "enable_thinking") and effort != "none":
            raise _unread(effort_field)
        asked["enable_thinking"] = _agreed(asked["enable_thinking"], effort != "none")
    for name, value in asked.items():
        if value is None or (not value and not _reads(template, name)):
            continue  # a model that cannot think does not
        if not _reads(template, name):
            raise _unread(name)
        options[name] = _agreed(options.get(name), value, name)
    return options


def _reads(template: str, name: str) -> bool:
    return re.search(rf"\b{re.escape(name)}\b", template) is not None


def _agreed(one: Any, other: Any, name: str = "enable_thinking") -> Any:
    if one is not None and one != other:
        message = f"The request says two different things of '{name}'. Leave one of them out."
        raise ApiError(message, param=name, code="invalid_value")
    return other


def _unread(where: str) -> ApiError:
    message = f"'{where}' cannot be honoured: the model's chat template does not read it."
    return ApiError(message, param=where, code="unsupported_parameter")


def is_thinking(prompt: str) -> bool:
    """Whether a text ends inside a thought."""
    return prompt.rfind(OPEN) > prompt.rfind(CLOSE)


def thoughts_of(
    template: str, prompt: str, grammar: Any, begun: str = ""
) -> dict[str, bool] | None:
    """The arguments of a `ThoughtReader` for an answer; None if the model does not think.

    Thoughts have begun if the prompt or the given beginning of the answer ends inside them. A
    grammar leaves no room for thoughts.
    prompt: the rendered conversation.
    begun: the beginning of the answer, if it was given.
    """
    if CLOSE not in template:
        return None
    is_inside = is_thinking(begun) if begun else prompt.rstrip().endswith(OPEN)
    return {"is_inside": is_inside and grammar is None}


class ThoughtReader:
    """Separates thoughts from the answer in a text that arrives in arbitrary pieces.

    Thoughts come first. White space next to their tags is dropped. If the closing tag never comes,
    all text counts as thoughts.
    """

    def __init__(self, *, is_inside: bool) -> None:
        self._is_inside = is_inside
        self._is_over = False
        self._is_at_edge = True  # nothing has been passed on since a tag, or since the beginning
        self._held = ""

    def push(self, text: str, *, final: bool = False) -> list[str | Thought]:
        """Add text. Returns what is certain by now, as thoughts and parts of the answer. final: no
        more text follows."""
        self._held += text
        told: list[str | Thought] = []
        if not self._is_over and not self._is_inside:
            self._begin(final=final)
        if self._is_inside:
            told += self._thoughts(final=final)
        if self._is_over:
            told += self._answer()
        return told

    def _begin(self, *, final: bool) -> None:
        """Find out whether the text begins with the opening tag."""
        begin = self._held.lstrip()
        if begin.startswith(OPEN):
            self._is_inside, self._held = True, begin[len(OPEN) :]
        elif final or not OPEN.startswith(begin):
            self._is_over, self._is_at_edge = True, False

    def _thoughts(self, *, final: bool) -> list[Thought]:
        """The part of the pending text that certainly belongs to the thoughts."""
        before, tag, after = self._held.partition(CLOSE)
        shown = before.lstrip() if self._is_at_edge else before
        if tag or final:
            shown, self._held = shown.rstrip(), after
            self._is_inside, self._is_over = False, True
        else:
            kept = _num_kept(shown)
            shown, self._held = shown[: len(shown) - kept], shown[len(shown) - kept :]
        self._is_at_edge = bool(tag) or (self._is_at_edge and not shown)
        return [Thought(shown)] if shown else []

    def _answer(self) -> list[str]:
        shown = self._held.lstrip() if self._is_at_edge else self._held
        self._held = ""
        self._is_at_edge = self._is_at_edge and not shown
        return [shown] if shown else []


def _num_kept(text: str) -> int:
    """The number of characters at the end that might begin the closing tag, with the white space
    before."""
    for size in range(min(len(CLOSE) - 1, len(text)), 0, -1):
        if CLOSE.startswith(text[-size:]):
            return len(text) - len(text[:-size].rstrip())
    return len(text) - len(text.rstrip())
