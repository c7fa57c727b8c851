"""Checks of a call's options, before the first token."""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np

from forerun.base.errors import InputError, UnsupportedError, explain, shown, wrong_type
from forerun.models.base import LanguageModel
from forerun.rules.types import DraftLength
from forerun.sampling.options import Sampling
from forerun.trees.tree import Tree

MOST = (1 << 31) - 1
"""Of anything that is counted: devices keep some of these in 32 bits."""
OPTIONAL = ("draft_length", "logprobs")
LEAST = {"draft_length": 0, "logprobs": 0, "batch_size": 1, "max_batch": 1, "max_waiting": 0}


def check_counts(draft_length: DraftLength, **counts: int | None) -> None:
    """Refuse what is no whole number, or too small or large; None leaves an optional one out."""
    given = None if draft_length == "auto" else draft_length
    for name, value in {"draft_length": given, **counts}.items():
        also = ', or "auto"' if name == "draft_length" else ""
        cure = f"Use a whole number from {LEAST[name]} on{also}."
        if value is None and name in OPTIONAL:
            continue
        if not isinstance(value, int):
            raise wrong_type(name, value, cure)
        if not LEAST[name] <= value <= MOST:
            raise InputError(explain(f"{name} is out of range.", value, cure))


def check_timeout(timeout: Any) -> None:
    """Refuse a number of seconds that is none, or none above 0."""
    cure = "Pass the seconds that the request may take, or None."
    number: Any = Real
    if timeout is None:
        return
    if not isinstance(timeout, number):
        raise wrong_type("timeout", timeout, cure)
    if not timeout > 0:
        raise InputError(explain("The deadline has passed already.", timeout, cure))
    if sys.float_info.max < timeout < math.inf:
        raise InputError(explain("timeout is out of range.", timeout, cure))


def check_slowdown(slowdown: Any) -> None:
    """Refuse a number that no round can be slowed by."""
    cure = "Use a number from 1 on: times as long as usual that a round may take."
    number: Any = Real
    if not isinstance(slowdown, number):
        raise wrong_type("slowdown", slowdown, cure)
    if not slowdown >= 1:
        raise InputError(explain("slowdown is out of range.", slowdown, cure))


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    if value not in choices:
        cure = f"Use {' or '.join(map(repr, choices))}."
        raise InputError(explain(f"{name} is not known.", shown(value), cure))


def check_ids(name: str, ids: Any, model: LanguageModel) -> None:
    listed: list[Any] = list(ids) if isinstance(ids, Iterable) else [None]
    if not all(isinstance(token, int | np.integer) for token in listed):
        raise wrong_type(name, ids, "Pass token ids, in a list even for one.")
    outside = [token for token in listed if not 0 <= token < model.vocab_size]
    if outside:
        cure = f"Ids must lie in 0 .. {model.vocab_size - 1}."
        wrong = f"{name} names tokens outside the vocabulary."
        raise InputError(explain(wrong, outside[:5], cure))


def stops_of(value: Any) -> tuple[str, ...]:
    """The strings that end a text, given as one or as several."""
    is_one = isinstance(value, str | bytes) or not isinstance(value, Iterable)
    stops = (value,) if is_one else tuple(value)
    for stop in stops:
        if not isinstance(stop, str):
            is_token = isinstance(stop, int | np.integer)
            token_cure = f"For a token id, use stop_tokens=[{shown(stop)}]."
            cure = token_cure if is_token else "Pass strings."
            cure = "Decode bytes first, with bytes.decode()." if isinstance(stop, bytes) else cure
            raise InputError(explain("stop holds what is no text.", f"{shown(value):.80}", cure))
    if "" in stops:
        cure = "Leave it out, or pass the text that should end the answer."
        raise InputError(explain("A stop string is empty.", list(stops), cure))
    return stops


def refuse_processors(sampling: Sampling) -> None:
    """A processor that runs a model of its own has a cache that cannot be put back."""
    for processor in sampling.processors:
        if not callable(processor):
            cure = "Pass transformers LogitsProcessor objects."
            raise InputError(explain("A processor is not callable.", shown(processor), cure))
        name, cure = type(processor).__name__, "Leave it out; all others are honoured exactly."
        parts = [*getattr(processor, "__dict__", {}).values()]
        parts += processor if isinstance(processor, list) else []
        nested = [value for part in parts for value in getattr(part, "__dict__", {}).values()]
        if any(hasattr(part, "forward") for part in (*parts, *nested)):
            wrong = "A processor that runs a model of its own cannot be rolled back exactly."
            raise UnsupportedError(explain(wrong, name, cure))
        try:
            copy.deepcopy(processor)
        except Exception as error:
            wrong = "A processor that cannot be copied cannot be rolled back exactly."
            raise UnsupportedError(explain(wrong, f"{name} ({error})", cure)) from error


def samplings_of(value: Any, count: int) -> list[Sampling]:
    """The sampling options of each prompt."""
    samplings = _each(value, count, "sampling", Sampling)
    for wrong in samplings:
        if isinstance(wrong, Sampling):
            continue
        cure = "Pass a forerun.Sampling, or one for each prompt."
        if isinstance(wrong, Mapping):
            inside = ", ".join(f"{key}={option!r}" for key, option in wrong.items())
            cure = f"Write Sampling({inside})."
        raise wrong_type("sampling", wrong, cure)
    return samplings


def limits_of(value: Any, count: int) -> list[int]:
    """max_new_tokens of each prompt."""
    limits = _each(value, count, "max_new_tokens", int | np.integer)
    for wrong in limits:
        if isinstance(wrong, int | np.integer):
            if wrong > MOST:
                cure = f"Use {MOST} or fewer."
                raise InputError(explain("max_new_tokens is out of range.", wrong, cure))
            continue
        is_whole = isinstance(wrong, float) and wrong.is_integer()
        like = f": {wrong:.0f}" if is_whole else ", or one for each prompt"
        raise wrong_type("max_new_tokens", wrong, f"Pass a whole number{like}.")
    return [int(limit) for limit in limits]


def given_of(value: Any, count: int, *, is_one: bool) -> list[list[int]]:
    """Output that exists already, for each prompt."""
    lists = [value] if is_one else list(value) or [()] * count
    for tokens in lists:
        is_list = isinstance(tokens, Sequence) and not isinstance(tokens, str)
        if not is_list or not all(isinstance(token, int | np.integer) for token in tokens):
            cure = "Pass output tokens: a list of ids, for several prompts one list for each."
            wrong, received = "resume does not fit the prompts.", f"{shown(value):.80}"
            raise InputError(explain(wrong, received, cure))
    if len(lists) != count:
        cure = f"Pass a list of {count} lists of tokens, empty ones included."
        raise InputError(explain("resume does not fit the prompts.", f"{shown(value):.80}", cure))
    return [[int(token) for token in tokens] for tokens in lists]


def idle_options(draft_length: DraftLength, tree: int | Tree | None) -> str | None:
    """The note about drafting options that have no effect without a drafter."""
    idle = ["draft_length"] * (draft_length not in ("auto", 0)) + ["tree"] * (tree is not None)
    return f"no drafter, so {' and '.join(idle)} did nothing" if idle else None


def _each(value: Any, count: int, name: str, kind: Any) -> list[Any]:
    """One value per prompt; a value that is neither of this kind nor a list is returned alone."""
    if isinstance(value, kind):
        return [value] * count
    if isinstance(value, str) or not isinstance(value, Sequence):
        return [value]
    if len(value) != count:
        cure = f"Pass one for all, or a list of {count}."
        received = f"{len(value)} for {count} prompt{'s' * (count != 1)}"
        raise InputError(explain(f"{name} does not fit the prompts.", received, cure))
    return list(value)
