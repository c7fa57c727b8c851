"""Prompts of any kind as token ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from forerun.arrays import to_numpy
from forerun.errors import InputError, explain
from forerun.models.base import LanguageModel
from forerun.models.quiet import no_warnings


def is_one(prompt: Any) -> bool:
    """Whether this is a single prompt: a string, token ids, or a list of chat messages."""
    if isinstance(prompt, str):
        return True
    if hasattr(prompt, "ndim"):
        return bool(prompt.ndim == 1)
    if not isinstance(prompt, Sequence) or len(prompt) == 0:
        return True
    return isinstance(prompt[0], int | np.integer | Mapping)


def encode(model: LanguageModel, prompt: Any) -> list[int]:
    """The token ids of one prompt; chat messages go through the tokenizer's template."""
    if isinstance(prompt, str):
        tokenizer = _tokenizer(model, "A prompt given as text")
        with no_warnings():  # of its length: what is too long is refused in our own words
            tokens = tokenizer.encode(prompt)
    elif _is_chat(prompt):
        tokenizer = _tokenizer(model, "A chat")
        text = tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
        with no_warnings():
            tokens = tokenizer.encode(text, add_special_tokens=False)
    else:
        tokens = _ids(prompt)
    if not tokens:
        cure = "Pass at least one token; a beginning-of-text token will do."
        raise InputError(explain("The prompt is empty.", repr(prompt), cure))
    outside = [token for token in tokens if not 0 <= token < model.vocab_size]
    if outside:
        cure = f"Ids must lie in 0 .. {model.vocab_size - 1}; is it the right tokenizer?"
        wrong = "The prompt has tokens outside the vocabulary."
        raise InputError(explain(wrong, outside[:5], cure))
    return list(tokens)


def _is_chat(prompt: Any) -> bool:
    return isinstance(prompt, Sequence) and bool(prompt) and isinstance(prompt[0], Mapping)


def _ids(prompt: Any) -> list[int]:
    try:
        ids = to_numpy(prompt) if hasattr(prompt, "ndim") else np.asarray(prompt)
    except ValueError:  # lists of different lengths
        ids = np.asarray(None)
    if ids.size and (ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer)):
        received = f"{type(prompt).__name__} of {ids.dtype}"
        cure = "Pass a string, a list of token ids, or a list of chat messages."
        is_message = isinstance(prompt, Mapping) and "role" in prompt
        if is_message or isinstance(prompt, int | np.integer):
            what = "a message" if is_message else "a token id"
            cure = f"If it is {what}, put it in a list: [{str(prompt)[:60]}]."
        raise InputError(explain("That is no prompt.", received, cure))
    return [int(token) for token in ids]


def _tokenizer(model: LanguageModel, what: str) -> Any:
    tokenizer = getattr(model, "tokenizer", None)
    if tokenizer is None:
        cure = "Pass token ids, or wrap it with its tokenizer: forerun.wrap(model, tokenizer)."
        raise InputError(explain(f"{what} needs a tokenizer.", f"{model.name} without one", cure))
    return tokenizer
