"""The types of the options of `generate`, and helpful errors for options that do not exist."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from functools import wraps
from inspect import signature
from typing import Any, Literal, ParamSpec, TypedDict, TypeVar

from forerun.base.errors import InputError, explain, shown
from forerun.drafters.base import Drafter
from forerun.engine.results import LogprobsOf
from forerun.rules.base import Rule
from forerun.rules.types import DraftLength
from forerun.sampling.options import Sampling
from forerun.trees.tree import Tree

Parameters = ParamSpec("Parameters")
Returned = TypeVar("Returned")


class GenerateOptions(TypedDict, total=False):
    """The keyword arguments of `generate` and `stream`; their docstrings explain them."""

    drafter: Drafter | str | None
    draft_length: DraftLength
    tree: int | Tree | None
    rule: str | Rule
    sampling: Sampling | Sequence[Sampling]
    max_new_tokens: int | Sequence[int]
    stop: str | Sequence[str]
    stop_tokens: Sequence[int]
    ignore_eos: bool
    logprobs: int | None
    logprobs_of: LogprobsOf
    resume: Sequence[Any]
    batch_size: int
    errors: Literal["raise", "return"]


ELSEWHERE = {
    "max_tokens": "max_new_tokens",
    "max_length": "max_new_tokens",
    "stop_strings": "stop",
    "stop_token_ids": "stop_tokens",
    "eos_token_id": "stop_tokens",
    "sampling_params": "sampling",
    "assistant_model": "drafter",
    "num_assistant_tokens": "draft_length",
    "num_speculative_tokens": "draft_length",
}
"""Options of transformers and vLLM, and what they are called here."""

NOWHERE = {
    "streamer": "Iterate over forerun.stream(target, prompt) instead.",
    "generation_config": "Pass its values: max_new_tokens, sampling=forerun.Sampling(...).",
    "num_beams": "There is no beam search here; leave it out.",
    "use_cache": "Leave it out: what was computed is always kept.",
    "return_dict_in_generate": "Leave it out: a Generation has text, tokens and more.",
    "attention_mask": "Pass what the tokenizer returned as the prompt, as it is.",
    "input_ids": "Pass it as the prompt, the second argument.",
    "errors": "Leave it out: awaiting the answer of a request that fails raises.",
}
"""Options without a counterpart, mostly of transformers, and what to do instead."""

OF_ENGINE = {
    name: name for name in ("drafter", "tree", "rule", "max_batch", "max_waiting", "slowdown")
} | {"batch_size": "max_batch"}
"""Options that all requests of an `AsyncEngine` share, with their names there."""

IN_SAMPLING = {field.name: field.name for field in fields(Sampling)} | {
    "num_return_sequences": "n",
    "bad_words_ids": "bad_words",
    "logits_processor": "processors",
    "min_new_tokens": "min_tokens",
}
"""Options that are fields of `Sampling`."""


def refuses_unknown(
    function: Callable[Parameters, Returned],
) -> Callable[Parameters, Returned]:
    """A decorator: if the function gets an unknown option, the error says what to write instead."""
    known = [name for name in signature(function).parameters if name != "self"]

    @wraps(function)
    def called(*args: Parameters.args, **options: Parameters.kwargs) -> Returned:
        unknown = {name: value for name, value in options.items() if name not in known}
        if unknown:
            raise _refusal(function.__name__, unknown, known)
        return function(*args, **options)

    return called


def _refusal(function: str, unknown: Mapping[str, Any], known: Sequence[str]) -> InputError:
    """The error for unknown options. It explains fields of `Sampling`, translates names of other
    libraries, and suggests the most similar name for misspelt ones."""
    received = ", ".join(f"{name}={_shown(value)}" for name, value in unknown.items())
    samples = unknown.get("do_sample")
    unknown = {name: value for name, value in unknown.items() if name != "do_sample"}
    if samples is False and not unknown:
        wrong = f"{function} has no option 'do_sample': it is greedy unless `sampling` is given."
        return InputError(explain(wrong, received, "Leave it out."))
    options = [
        f"{IN_SAMPLING[name]}={shown(value):.40}"
        for name, value in unknown.items()
        if name in IN_SAMPLING
    ]
    if len(options) == len(unknown):
        wrong = f"How tokens are chosen is told to {function} by its option `sampling`."
        cure = f"Write sampling=forerun.Sampling({', '.join(options)})."
    else:
        name = next(name for name in unknown if name not in IN_SAMPLING)
        wrong = f"{function} has no option {name!r}."
        alike = [ELSEWHERE[name]] if ELSEWHERE.get(name) in known else []
        alike = alike or get_close_matches(name, known, 1, cutoff=0.7)
        cure = f"Use {alike[0]}." if alike else f"Its options are {', '.join(known)}."
        cure = NOWHERE.get(name, cure)
        if function == "submit" and (shared := OF_ENGINE.get(ELSEWHERE.get(name, name))):
            cure = f"All requests share it: write AsyncEngine(target, {shared}=...)."
    return InputError(explain(wrong, received, cure))


def _shown(value: Any) -> str:
    """A value as text for a message; for a large object such as a model, its type."""
    is_plain = isinstance(value, bool | int | float | str | list | tuple | dict | None)
    return f"{shown(value):.40}" if is_plain else f"a {type(value).__name__}"
