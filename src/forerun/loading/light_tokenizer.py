"""A tokenizer that answers the usual calls without transformers, which takes seconds to import.

It encodes, decodes and renders chats with the libraries that transformers itself uses. Any other
call loads the complete tokenizer and is passed to it. `of` makes a light tokenizer only if it gives
the same results as the complete one on texts and chats of several kinds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

TEXTS = (
    "Hello, world! It's 12 345.67 o'clock.\n\n\tdef f(x):  return x  # äöü €",
    "  leading, trailing  ",
    "日本語のテキスト и русский текст 🙂🏽",
)
PLAIN = {"role", "content", "name", "tool_calls", "tool_call_id"}
KNOWN = {"tokenize", "add_generation_prompt", "tools"}
TOOL = {
    "type": "function",
    "function": {
        "name": "at",
        "description": "Größe <b>",
        "parameters": {"type": "object", "properties": {"x": {"type": "number"}}},
    },
}
CALL = {"id": "c1", "type": "function", "function": {"name": "at", "arguments": {"x": 1.5}}}
TOOL_CHAT = [
    {"role": "user", "content": "user says"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": "tool says", "tool_call_id": "c1"},
]


class KeptTokenizer(NamedTuple):
    """The parts from which a light tokenizer is made, in a form that can be stored on disk."""

    words: NDArray[np.uint8]  # the JSON text of the tokenizers library; empty: there is none
    chat_template: str | None
    eos_token_id: int | None
    special_tokens: dict[str, str]  # by their names in templates


NONE = KeptTokenizer(np.empty(0, np.uint8), None, None, {})


class LightTokenizer:
    """Stands in for transformers' tokenizer, even in `isinstance`, and loads it when needed."""

    def __init__(self, kept: KeptTokenizer, load: Callable[[], Any]) -> None:
        from tokenizers import Tokenizer

        own = vars(self)
        own["_backend"] = Tokenizer.from_str(kept.words.tobytes().decode())
        own["_special_tokens"] = kept.special_tokens
        own["_template"] = None if kept.chat_template is None else _compiled(kept.chat_template)
        own["_load"], own["_whole"] = load, None
        own["chat_template"], own["eos_token_id"] = kept.chat_template, kept.eos_token_id

    def encode(self, text: Any, *arguments: Any, **options: Any) -> list[int]:
        is_usual = not arguments and not options.keys() - {"add_special_tokens"}
        if self._whole is None and is_usual and isinstance(text, str):
            return list(self._backend.encode(text, **options).ids)
        return list(self._all.encode(text, *arguments, **options))

    def decode(self, tokens: Any, *arguments: Any, **options: Any) -> Any:
        is_usual = not arguments and not options.keys() - {"skip_special_tokens"}
        if self._whole is None and is_usual and isinstance(tokens, list):
            return self._backend.decode(tokens, **{"skip_special_tokens": False, **options})
        return self._all.decode(tokens, *arguments, **options)

    def apply_chat_template(self, conversation: Any, *arguments: Any, **options: Any) -> Any:
        tools = options.get("tools")
        is_usual = not arguments and options.get("tokenize") is False
        is_usual = is_usual and not options.keys() - KNOWN and (tools is None or _json(tools))
        if self._whole is None and is_usual and self._template is not None and _plain(conversation):
            prompts = bool(options.get("add_generation_prompt"))
            messages = [dict(message) for message in conversation]
            told = {"messages": messages, "tools": tools, "documents": None}
            return self._template.render(
                **told, add_generation_prompt=prompts, **self._special_tokens
            )
        return self._all.apply_chat_template(conversation, *arguments, **options)

    def get_chat_template(self, *arguments: Any, **options: Any) -> Any:
        is_usual = not arguments and not options.keys() - {"tools"}
        if self._whole is None and is_usual and self._template is not None:
            return self.chat_template
        return self._all.get_chat_template(*arguments, **options)

    def convert_ids_to_tokens(self, ids: Any, *arguments: Any, **options: Any) -> Any:
        if self._whole is None and isinstance(ids, int) and not arguments and not options:
            return self._backend.id_to_token(ids)
        return self._all.convert_ids_to_tokens(ids, *arguments, **options)

    def get_vocab(self) -> dict[str, int]:
        return dict((self._backend if self._whole is None else self._all).get_vocab())

    def __len__(self) -> int:
        return self._backend.get_vocab_size() if self._whole is None else len(self._all)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self._all(*arguments, **options)

    def __repr__(self) -> str:
        return repr(self._all)

    def __reduce__(self) -> Any:
        """Copy and pickle the complete tokenizer instead."""
        return _itself, (self._all,)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._all, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute of the complete tokenizer, which answers all calls from then on."""
        setattr(self._all, name, value)
        vars(self).pop(name, None)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """The class of the complete tokenizer, for `isinstance`."""
        return type(self._all)

    @property
    def added_tokens_decoder(self) -> Any:
        if self._whole is None:
            return self._backend.get_added_tokens_decoder()
        return self._all.added_tokens_decoder

    @property
    def backend_tokenizer(self) -> Any:
        return self._backend if self._whole is None else self._all.backend_tokenizer

    @property
    def _all(self) -> Any:
        own = vars(self)
        if own["_whole"] is None:
            own["_whole"] = own["_load"]()
        return own["_whole"]


def _itself(value: Any) -> Any:
    return value


def of(tokenizer: Any) -> KeptTokenizer:
    """The parts of a light tokenizer equivalent to this one; `NONE` if there is none."""
    try:
        kept = KeptTokenizer(
            words=np.frombuffer(_quick(tokenizer.backend_tokenizer.to_str()).encode(), np.uint8),
            chat_template=tokenizer.chat_template,
            eos_token_id=tokenizer.eos_token_id,
            special_tokens={
                name: str(token)
                for name, token in tokenizer.special_tokens_map.items()
                if isinstance(token, str)
            },
        )
        light = LightTokenizer(kept, lambda: tokenizer)
        texts = (*TEXTS, "".join(kept.special_tokens.values()))
        is_same = _answers(light, texts) == _answers(tokenizer, texts)
        is_same = is_same and vars(light)["_whole"] is None
    except Exception:  # a tokenizer of another kind, or a template that needs more
        return NONE
    return kept if is_same else NONE


def _quick(words: str) -> str:
    """The same JSON text with the pairs of a BPE as `"a b"`, the older form: it is read in two
    thirds of the time and memory. Pairs that this form could not tell apart stay as they are."""
    told = json.loads(words)
    merges = told["model"].get("merges") or []
    if not merges or any(" " in "".join(pair) or pair[0].startswith("#version") for pair in merges):
        return words
    told["model"]["merges"] = [" ".join(pair) for pair in merges]
    return json.dumps(told, ensure_ascii=False, separators=(",", ":"))


def _answers(tokenizer: Any, texts: Sequence[str]) -> list[Any]:
    """The results of a tokenizer for some texts and chats, for comparison."""
    told: list[Any] = []
    for text in texts:
        ids = tokenizer.encode(text)
        told += [ids, tokenizer.encode(text, add_special_tokens=False)]
        told += [tokenizer.decode(ids), tokenizer.decode(ids, skip_special_tokens=True)]
    if tokenizer.chat_template is None:
        return told
    roles = (("user",), ("system", "user"), ("user", "assistant", "user"))
    for chat in roles:
        messages = [{"role": role, "content": f"{role} says"} for role in chat]
        for prompts in (True, False):
            options = {"tokenize": False, "add_generation_prompt": prompts}
            told.append(tokenizer.apply_chat_template(messages, **options))
    return [*told, _with_tools(tokenizer)]


def _with_tools(tokenizer: Any) -> str:
    """A chat with a tool call and its result, rendered as text; or the error message of a template
    that does not support these."""
    try:
        return str(tokenizer.apply_chat_template(TOOL_CHAT, tools=[TOOL], tokenize=False))
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _plain(conversation: Any) -> bool:
    """Whether all messages consist of a role, a text, and at most calls or the result of one."""
    return isinstance(conversation, list) and all(
        isinstance(message, Mapping)
        and {"role", "content"} <= message.keys() <= PLAIN
        and isinstance(message["content"], str)
        and _json(message)
        for message in conversation
    )


def _json(value: Any) -> bool:
    """Whether a value consists only of the types that parsing JSON gives."""
    if isinstance(value, Mapping):
        return type(value) is dict and all(map(_json, value)) and all(map(_json, value.values()))
    if isinstance(value, list):
        return all(map(_json, value))
    return value is None or type(value) in (str, int, float, bool)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    """The filter of templates, with the arguments that it has in transformers."""
    how: dict[str, Any] = {"indent": indent, "separators": separators, "sort_keys": sort_keys}
    return json.dumps(value, ensure_ascii=ensure_ascii, **how)


def _compiled(template: str) -> Any:
    """A chat template, compiled in the sandbox for untrusted templates."""
    from jinja2.exceptions import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> None:
        raise TemplateError(message)

    options: dict[str, Any] = {"trim_blocks": True, "lstrip_blocks": True}
    environment = ImmutableSandboxedEnvironment(extensions=["jinja2.ext.loopcontrols"], **options)
    environment.globals = {
        "range": environment.globals["range"],
        "raise_exception": refuse,
    }
    environment.filters["tojson"] = _to_json
    return environment.from_string(template)
