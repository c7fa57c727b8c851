"""Turns prompts of any kind into token ids."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from forerun.base.arrays import to_numpy
from forerun.base.errors import InputError, explain, meant, shown, warn
from forerun.models.base import LanguageModel
from forerun.models.no_warnings import no_warnings

Message = Mapping[str, Any]
"""A part of a chat: {"role": "user", "content": "..."}."""

OnePrompt = str | Sequence[int] | Sequence[Message]
"""A text, token ids, or a chat."""

ManyPrompts = list[str] | tuple[str, ...] | Sequence[Sequence[int]] | Sequence[Sequence[Message]]
"""Several prompts of one kind, in types that cannot be mistaken for a single prompt; a list may
also mix the kinds."""


def is_one(prompt: Any) -> bool:
    """Whether this is a single prompt: a string, token ids, or a list of chat messages."""
    if isinstance(prompt, str):
        return True
    if hasattr(prompt, "ndim"):
        return bool(prompt.ndim < 2)
    if not isinstance(prompt, Sequence):
        return True
    return len(prompt) > 0 and (isinstance(prompt[0], int | np.integer) or _is_message(prompt[0]))


def prompts_of(prompt: Any) -> tuple[list[Any], bool]:
    """The prompts that a caller passed, and whether it was a single one."""
    prompt = _unpacked(prompt) if _is_encoding(prompt) else prompt
    return ([prompt], True) if is_one(prompt) else (list(prompt), False)


def encode(model: LanguageModel, prompt: Any) -> list[int]:
    """The token ids of one prompt. Chat messages go through the tokenizer's template."""
    if isinstance(prompt, str):
        tokenizer = _tokenizer(model, "A prompt given as text")
        refuse_halves("The prompt", prompt)
        with no_warnings():  # of its length: what is too long is refused in our own words
            tokens = tokenizer.encode(prompt)
    elif _is_chat(prompt):
        tokens = _encoded_chat(model, prompt)
    elif _is_encoding(prompt):
        ids = _unpacked(prompt)
        tokens = _ids(ids[0] if isinstance(ids, list) and len(ids) == 1 else ids)
    else:
        tokens = _ids(prompt)
    if not tokens:
        cure = "Pass at least one token; a beginning-of-text token will do."
        raise InputError(explain("The prompt is empty.", shown(prompt), cure))
    outside = [token for token in tokens if not 0 <= token < model.vocab_size]
    if outside:
        cure = f"Ids must lie in 0 .. {model.vocab_size - 1}; is it the right tokenizer?"
        wrong = "The prompt has tokens outside the vocabulary."
        raise InputError(explain(wrong, outside[:5], cure))
    return list(tokens)


def _is_encoding(prompt: Any) -> bool:
    return isinstance(prompt, Mapping) and "input_ids" in prompt


def _is_message(prompt: Any) -> bool:
    return isinstance(prompt, Mapping) and not _is_encoding(prompt)


def _is_chat(prompt: Any) -> bool:
    return isinstance(prompt, Sequence) and bool(prompt) and _is_message(prompt[0])


def _unpacked(prompt: Mapping[str, Any]) -> Any:
    """The ids in the output of a tokenizer (`BatchEncoding`), without padding: an array (N,), or a
    list of arrays."""
    ids, mask = _listed(prompt["input_ids"]), _listed(prompt.get("attention_mask"))
    if not isinstance(ids, Sequence) or isinstance(ids, str):
        wrong, cure = "That is no prompt: its input_ids are no token ids.", "Pass a list of them."
        raise InputError(explain(wrong, f"{shown(ids):.80}", cure))
    if ids and isinstance(ids[0], Sequence):
        masks = [None] * len(ids) if mask is None else mask
        return [_unpadded(row, seen) for row, seen in zip(ids, masks, strict=True)]
    return _unpadded(ids, mask)


def _listed(values: Any) -> Any:
    return values.tolist() if hasattr(values, "tolist") else values


def _unpadded(ids: Sequence[int], mask: Sequence[int] | None) -> Any:
    """The ids (N,) that the attention mask does not mark as padding."""
    kept = ids if mask is None else [token for token, seen in zip(ids, mask, strict=True) if seen]
    return np.asarray(kept, dtype=None if kept else np.int64)


def _encoded_chat(model: LanguageModel, chat: Sequence[Message]) -> list[int]:
    """The ids of a chat, rendered by the template of the model's tokenizer."""
    tokenizer = _tokenizer(model, "A chat")
    chat = [_with_text(message) for message in chat]

    def render(messages: Sequence[Message]) -> str:
        return str(
            tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        )

    try:
        text = render(chat)
    except Exception as error:  # of transformers, of Jinja, or of the template itself
        cure = (
            "Pass a string, which is continued as it stands, or set tokenizer.chat_template to "
            "the template the model was trained with."
        )
        wrong = "This model has no chat template."
        if getattr(tokenizer, "chat_template", None):
            reason = str(error).rstrip(".")
            wrong = f"The chat template refuses these messages: {reason}."
            cure = "Change the roles or contents it names."
            if type(error).__name__ == "TemplateSyntaxError":  # Jinja's, for any messages
                wrong = f"The chat template of this model is broken: {reason}."
                cure = "Pass a string (--raw), or set tokenizer.chat_template to one that works."
        raise InputError(explain(wrong, f"a chat for {model.name}", cure)) from error
    refuse_halves("The chat", text)
    check_roles(chat, text, getattr(tokenizer, "chat_template", None), render)
    with no_warnings():
        tokens: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return tokens


def _with_text(message: Any) -> Message:
    """The message, checked. Content given as a list of text parts (as OpenAI's clients send it) is
    joined."""
    cure = "Write {'role': 'user', 'content': '...'}."
    if not _is_message(message):
        wrong = "A chat holds something that is no message."
        raise InputError(explain(wrong, f"{shown(message):.80}", cure))
    required = ("role",) if "tool_calls" in message else ("role", "content")
    missing = [key for key in required if message.get(key) is None]
    if missing:
        wrong = f"A message has no {' and no '.join(missing)}."
        raise InputError(explain(wrong, f"{shown(dict(message)):.80}", cure))
    parts = message.get("content")
    if parts is None or isinstance(parts, str):
        return dict(message)
    is_list = isinstance(parts, Sequence)
    texts = [part.get("text") if _is_part(part) else None for part in parts] if is_list else [None]
    if not all(isinstance(text, str) for text in texts):
        wrong = "The content of a message is no text."
        raise InputError(explain(wrong, f"{shown(parts):.80}", cure))
    return {**message, "content": "".join(map(str, texts))}


def _is_part(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "text"


def _ids(prompt: Any) -> list[int]:
    """The token ids in an array or a list. For anything else, the error says what to pass
    instead."""
    try:
        ids = to_numpy(prompt) if hasattr(prompt, "ndim") else np.asarray(prompt)
    except ValueError:  # lists of different lengths
        ids = np.asarray(None)
    if ids.size and (ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer)):
        cure = "Pass a string, a list of token ids, or a list of chat messages."
        is_message = isinstance(prompt, Mapping) and "role" in prompt
        if isinstance(prompt, bytes):
            cure = "Bytes are no text: decode them first, with bytes.decode()."
        is_id = isinstance(prompt, int | np.integer) and not isinstance(prompt, bool)
        if is_message or is_id:
            what = "a message" if is_message else "a token id"
            cure = f"If it is {what}, put it in a list: [{shown(prompt, str):.60}]."
        raise InputError(explain("That is no prompt.", _described(prompt), cure))
    return [int(token) for token in ids]


def _described(value: Any) -> str:
    """A description, for an error, of a value that is not a prompt; of a list, the types of its
    items."""
    if value is None or isinstance(value, bytes):
        return "None" if value is None else "bytes"
    kind = type(value).__name__
    if hasattr(value, "ndim"):
        return f"an array of {value.dtype}, of shape {tuple(value.shape)}"
    if not isinstance(value, list | tuple | set):
        return f"the {kind} {shown(value):.80}"
    inside = dict.fromkeys("None" if one is None else type(one).__name__ for one in value)
    return f"a {kind} of {' and '.join(inside)}"


def refuse_halves(what: str, text: str) -> None:
    """Refuse text with a lone surrogate (half of a character), which some ways to cut or read text
    leave."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        wrong = f"{what} holds half of a character, which no tokenizer can encode."
        around = text[max(0, error.start - 10) : error.start + 11]
        cure = (
            "Leave it out, or join halves and mark those left alone: "
            "text.encode('utf-16', 'surrogatepass').decode('utf-16', 'replace')."
        )
        raise InputError(explain(wrong, shown(around), cure)) from error


def _tokenizer(model: LanguageModel, what: str) -> Any:
    """The model's tokenizer; raises `InputError` where it has none."""
    tokenizer = getattr(model, "tokenizer", None)
    if tokenizer is None:
        cure = "Pass token ids, or wrap it with its tokenizer: forerun.wrap(model, tokenizer)."
        raise InputError(explain(f"{what} needs a tokenizer.", f"{model.name} without one", cure))
    return tokenizer


USUAL = ("system", "developer", "user", "assistant", "tool", "function")
"""The roles of OpenAI's API. Each template supports only some of them."""
ALWAYS = ("user", "assistant")
"""The roles that every template writes out, although some leave out part of what an assistant
said."""
MARK = "forerun7mark"  # a word that no template has, and that every way to quote leaves as it is
COMPARED = re.compile(r"""role['"\]]*\s*(?:==|!=|in)\s*[(\[]?((?:\s*,?\s*['"]\w+['"])+)""")
"""Matches the places where a template compares a role with names."""


def check_roles(
    chat: Sequence[Mapping[str, Any]],
    text: str,
    template: Any,
    render: Callable[[Sequence[Mapping[str, Any]]], str],
) -> None:
    """Refuse a message that the template drops because of its role. Warn of a role that is neither
    in the template nor in common use.

    text: the chat as rendered by the template.
    template: the template's source.
    render: renders another chat.
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
    """The roles that a template's source mentions in comparisons; none if the template is not
    text."""
    if not isinstance(template, str):
        return []
    compared = " ".join(COMPARED.findall(template))
    return list(dict.fromkeys(re.findall(r"\w+", compared)))


def _is_dropped(
    chat: Sequence[Mapping[str, Any]],
    number: int,
    render: Callable[[Sequence[Mapping[str, Any]]], str],
) -> bool:
    """Whether the template leaves out a message with this role, although it shows a user's
    message."""
    marked = [*chat[:number], {**chat[number], "content": MARK}, *chat[number + 1 :]]
    try:
        return MARK not in render(marked) and MARK in render([{"role": "user", "content": MARK}])
    except Exception:  # of a template that looks into contents: nothing is known then
        return False
