"""Tool calls in a model's text: how they are written, forced by grammars, and parsed.

Two notations cover the usual model families. Hermes and Qwen write `<tool_call>{"name": ...,
"arguments": {...}}</tool_call>` between other text; Llama 3 answers with only
`{"name": ..., "parameters": {...}}`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from forerun.grammars import Grammar, lark

OPEN, CLOSE = "<tool_call>", "</tool_call>"
COMPACT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True)
class Call:
    """A call as the client receives it; its arguments are JSON text."""

    name: str
    arguments: str


Told = str | Call
"""A step of an answer: text, or a call."""


class Reader(Protocol):
    """Finds the calls in a text that arrives in arbitrary pieces."""

    def push(self, text: str) -> list[Told]: ...

    def end(self) -> list[Told]: ...


class Writing(Protocol):
    """How a family of models writes calls."""

    def reader(self, names: Iterable[str]) -> Reader: ...

    def grammar(
        self, functions: Sequence[Mapping[str, Any]], *, is_forced: bool, is_one: bool
    ) -> Grammar:
        """A grammar for answers whose calls match the descriptions of the functions.

        is_forced: the answer must consist of calls only.
        is_one: there is at most one call.
        """
        ...


def writing_of(template: str) -> Writing | None:
    """How a model with this chat template writes calls; None if unknown."""
    if OPEN in template:
        return Hermes()
    is_llama = "<|python_tag|>" in template or "<|start_header_id|>" in template
    return Llama() if is_llama and '"parameters"' in template else None


class Hermes:
    """The notation of Hermes and Qwen models: calls between tags."""

    def reader(self, names: Iterable[str]) -> HermesReader:
        return HermesReader(frozenset(names))

    def grammar(
        self, functions: Sequence[Mapping[str, Any]], *, is_forced: bool, is_one: bool
    ) -> Grammar:
        rest = f'body: "\\n" json "\\n{CLOSE}"\njson: %json {_calls(functions, "arguments")}\n'
        if is_forced:
            calls = "call" if is_one else 'call ("\\n" call)*'
            return lark(f'start: {calls}\ncall: "{OPEN}" body\n{rest}')
        calls = "head body" if is_one else "(head body)+ TEXT?"
        return lark(
            f"start: TEXT? | {calls}\n"
            f"head[lazy]: /(.|\\n)*{OPEN}/\n"
            f"TEXT: /(.|\\n)+/ & ~/(.|\\n)*{OPEN}(.|\\n)*/\n{rest}"
        )


class HermesReader:
    """Finds calls between tags. Text outside the tags is returned, without the white space next to
    a call."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names
        self._held = ""  # text that may belong to a tag, and white space that may precede one
        self._inside: str | None = None  # the text of a call so far
        self._after_call = False

    def push(self, text: str) -> list[Told]:
        """Add text. Returns the text and the calls that are certain by now."""
        told: list[Told] = []
        self._held += text
        while True:
            if self._inside is None:
                before, tag, after = self._held.partition(OPEN)
                if not tag:
                    told += self._pass_on(final=False)
                    return told
                self._held = before.rstrip()
                told += self._pass_on(final=True)
                self._inside, self._held = "", after
            else:
                text = self._inside + self._held
                first = end = text.find(CLOSE)
                while end >= 0 and _is_in_string(text[:end]):
                    end = text.find(CLOSE, end + 1)
                if end < 0:
                    self._inside, self._held = text, ""
                    return told
                if _read(text[:end]) is None:  # those before were no part of a string either
                    end = first
                told += self._close(text[:end], CLOSE)
                self._held = text[end + len(CLOSE) :]

    def end(self) -> list[Told]:
        """Return the text and the calls that were still held back; a call may lack its closing
        tag."""
        told: list[Told] = []
        while self._inside is not None:
            text, tag, after = self._inside, "", ""
            if _read(text) is None:  # a tag in a string that never ended is a tag after all
                text, tag, after = text.partition(CLOSE)
            told += self._close(text, tag)
            told += self.push(after)
        return told + self._pass_on(final=True)

    def _close(self, text: str, tag: str) -> list[Told]:
        """Parse the call that ends here. If it is not a call, its text is returned unchanged."""
        self._inside = None
        call = call_of(_read(text), "arguments", self._names)
        self._after_call = call is not None
        return [OPEN + text + tag] if call is None else [call]

    def _pass_on(self, *, final: bool) -> list[Told]:
        """Return the part of the pending text that is certainly not a call."""
        if self._after_call:
            self._held = self._held.lstrip()
        kept = 0 if final else _num_kept(self._held)
        shown = self._held[: len(self._held) - kept]
        self._held = self._held[len(shown) :]
        if shown:
            self._after_call = False
        return [shown] if shown else []


def _num_kept(text: str) -> int:
    """The number of characters at the end that might begin a tag, with the white space before
    them."""
    for size in range(min(len(OPEN) - 1, len(text)), 0, -1):
        if OPEN.startswith(text[-size:]):
            return len(text) - len(text[:-size].rstrip())
    return len(text) - len(text.rstrip())


class Llama:
    """The notation of Llama 3 models: an answer that consists only of calls."""

    def reader(self, names: Iterable[str]) -> LlamaReader:
        return LlamaReader(frozenset(names))

    def grammar(
        self, functions: Sequence[Mapping[str, Any]], *, is_forced: bool, is_one: bool
    ) -> Grammar:
        calls = "call" if is_one else 'call ("; " call)*'
        start = calls if is_forced else f"TEXT? | {calls}"
        text = "" if is_forced else "TEXT: /\\s*[^{\\s](.|\\n)*/\n"
        return lark(f"start: {start}\n{text}call: %json {_calls(functions, 'parameters')}\n")


class LlamaReader:
    """Holds back an answer that begins like a call until it is complete."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names
        self._held = ""
        self._is_text = False

    def push(self, text: str) -> list[Told]:
        """Add text. Returns it once it is certain that the answer is not a call."""
        self._held += text
        if not self._is_text:
            begin = self._held.lstrip()
            self._is_text = bool(begin) and not begin.startswith("{")
        if not self._is_text:
            return []
        shown, self._held = self._held, ""
        return [shown] if shown else []

    def end(self) -> list[Told]:
        calls = None if self._is_text else self._calls(self._held)
        if calls is None:
            return [self._held] if self._held else []
        return list(calls)

    def _calls(self, text: str) -> list[Call] | None:
        """The calls, if the text consists only of calls; else None."""
        decoder, calls, rest = json.JSONDecoder(), [], text.strip()
        while rest:
            try:
                value, end = decoder.raw_decode(rest)
            except ValueError:
                return None
            call = call_of(value, "parameters", self._names)
            if call is None:
                return None
            calls.append(call)
            rest = rest[end:].lstrip("; \n\t")
        return calls or None


def _calls(functions: Sequence[Mapping[str, Any]], arguments: str) -> str:
    """The schema of a call of one of the functions, as JSON text."""
    options = [
        {
            "type": "object",
            "properties": {
                "name": {"const": function["name"]},
                arguments: function["parameters"] or NO_PARAMETERS,
            },
            "required": ["name", arguments],
            "additionalProperties": False,
        }
        for function in functions
    ]
    schema = options[0] if len(options) == 1 else {"anyOf": options}
    return json.dumps({"x-guidance": COMPACT, **schema})


def call_of(value: Any, arguments: str, names: frozenset[str]) -> Call | None:
    """The call that a JSON value describes, if it is one of the named functions; else None."""
    if not isinstance(value, Mapping):
        return None
    name, given = value.get("name"), value.get(arguments, {})
    if not isinstance(name, str) or name not in names or not isinstance(given, Mapping):
        return None
    return Call(name, json.dumps(given, ensure_ascii=False))


def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _is_in_string(text: str) -> bool:
    """Whether the text is JSON that ends in the middle of a string."""
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        return error.msg.startswith("Unterminated string")
    except RecursionError:
        pass
    return False
