"""Makes requests from prompts and options, and refuses those that do not fit the model."""

from __future__ import annotations

import copy
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from forerun.base.clock import now
from forerun.base.errors import InputError, UnsupportedError, explain, shown, wrong_type
from forerun.engine.answer_options import AnswerOptions
from forerun.engine.request import Request
from forerun.engine.text import TextStream
from forerun.generation.prompts import refuse_halves
from forerun.grammars.base import NOTHING_ALLOWED, Cursor, Grammar, allowed_after
from forerun.models.base import LanguageModel, endings_of
from forerun.noise.race import fold
from forerun.sampling.options import Bans, Sampling


def make_samples(
    model: LanguageModel,
    prompt: Sequence[int],
    options: AnswerOptions,
    *,
    index: int = 0,
    given: Sequence[int] = (),
) -> list[Request]:
    """The requests for the samples of one prompt (token ids), each with its own seed."""
    sampling = options.sampling
    if given and sampling.n > 1:
        cure = "Resume each sample as a request of its own, with its own seed."
        raise InputError(explain("Several samples cannot share an output.", sampling.n, cure))
    seed = secrets.randbits(63) if sampling.seed is None else sampling.seed
    biases = dict(sampling.logit_bias)  # ours: the caller's may change while it is answered
    requests = []
    for sample in range(sampling.n):
        own = replace(sampling, seed=fold(seed, sample), logit_bias=biases, n=1)
        asked = replace(options, sampling=own)
        requests.append(make_request(model, prompt, asked, index=index, sample=sample, given=given))
    return requests


def make_request(
    model: LanguageModel,
    prompt: Sequence[int],
    options: AnswerOptions,
    *,
    index: int = 0,
    sample: int = 0,
    given: Sequence[int] = (),
) -> Request:
    """Make a request, or raise the reason why it does not fit the model.

    prompt: token ids of the model, as `encode` gives them.
    given: output tokens that exist already; max_new_tokens counts them.
    """
    sampling = options.sampling
    tokenizer = getattr(model, "tokenizer", None)
    if options.stop and tokenizer is None:
        cure = "Use stop_tokens, or wrap the model with its tokenizer."
        raise InputError(explain("Stop strings need a tokenizer.", list(options.stop), cure))
    room = options.max_new_tokens if model.max_context is None else model.max_context - len(prompt)
    if room < 1:
        received = f"{len(prompt)} tokens for a context of {model.max_context}"
        cure = f"Shorten it to {(model.max_context or 1) - 1} tokens or fewer."
        raise InputError(explain("The prompt leaves no room in the context.", received, cure))
    refuse_processors(sampling)
    check_ids("stop_tokens", options.stop_tokens, model)
    check_ids("logit_bias", sampling.logit_bias, model)
    for word in sampling.bad_words:
        check_ids("bad_words", () if isinstance(word, str) else word, model)
    endings = (*options.stop_tokens, *(() if options.ignore_eos else ending_tokens(model)))
    if isinstance(sampling.grammar, Grammar):
        sampling, endings = _with_cursor(model, sampling, sampling.grammar, endings)
    text = None if tokenizer is None else TextStream(tokenizer, options.stop, sampling.min_tokens)
    limit = min(options.max_new_tokens, room)
    given = _checked_output(given, model, limit, endings, text)
    return Request(
        index=index,
        sample=sample,
        prompt=list(prompt),
        options=options,
        sampling=sampling,
        limit=limit,
        limit_reason="length" if options.max_new_tokens <= room else "context",
        endings=endings,
        bans=Bans(_bad_words(sampling, model), endings),
        text=text,
        given=given,
        deadline=None if options.timeout is None else now() + options.timeout,
    )


def _checked_output(
    given: Any,
    model: LanguageModel,
    limit: int,
    endings: Sequence[int],
    text: TextStream | None,
) -> list[int]:
    """The existing output, as a list. Refuses ids that are not output of the model, or that leave
    nothing to generate."""
    is_list = isinstance(given, Sequence) and not isinstance(given, str)
    if not is_list or not all(isinstance(token, int | np.integer) for token in given):
        cure = "Pass output tokens: a list of ids, for several prompts one list for each."
        wrong, received = "resume does not fit the prompts.", f"{shown(given):.80}"
        raise InputError(explain(wrong, received, cure))
    check_ids("resume", given, model)
    if len(given) >= limit:
        cure = f"Pass at most {limit - 1} tokens, or allow more new ones."
        raise InputError(
            explain("There is nothing left to generate.", f"{len(given)} tokens", cure)
        )
    for place, token in enumerate(given):
        stopped = text is not None and text.push(token)
        if stopped or token in endings:
            cure = "Nothing follows the end of an answer: leave the request out."
            wrong = f"The output so far has already ended, at its token {place}."
            raise InputError(explain(wrong, token, cure))
    if text is not None:
        text.release()
    return [int(token) for token in given]


def ending_tokens(model: LanguageModel) -> tuple[int, ...]:
    """The ids with which the model ends a text, as transformers determines them."""
    stated = getattr(model, "endings", None)
    ids = endings_of(getattr(model, "model", None)) if stated is None else stated
    return tuple(sorted({int(token) for token in ids if 0 <= token < model.vocab_size}))


def _with_cursor(
    model: LanguageModel, sampling: Sampling, grammar: Grammar, endings: Sequence[int]
) -> tuple[Sampling, tuple[int, ...]]:
    """The options, with a grammar matcher for this request alone, and the tokens that end the text.

    Nothing can follow the end of a grammar, so the grammar's ending tokens always end the text.
    """
    tokenizer = getattr(model, "tokenizer", None)
    last = getattr(tokenizer, "eos_token_id", None)
    ends = ending_tokens(model) or (() if last is None else (last,)) or tuple(endings)
    cursor = Cursor(lambda: grammar.matcher(tokenizer, model.vocab_size, ends))
    refuse_empty(grammar, cursor, model.vocab_size, ends)
    return replace(sampling, grammar=cursor), tuple(dict.fromkeys((*endings, *ends)))


def refuse_empty(grammar: Grammar, cursor: Cursor, vocab_size: int, ends: Sequence[int]) -> None:
    """Refuse a grammar that allows no text, or only an empty one."""
    received = f"{shown(getattr(grammar, 'text', grammar)):.80}"
    cure = "Correct it: some token must be allowed to come first."
    try:
        allowed = allowed_after(cursor, (), vocab_size)
    except ValueError as error:
        if str(error) != NOTHING_ALLOWED:
            raise
        raise InputError(explain("The grammar allows no text.", received, cure)) from error
    if allowed.sum() == allowed[list(ends)].sum():
        raise InputError(explain("The grammar allows an empty text only.", received, cure))


def has_grammar(request: Request) -> bool:
    """Whether the request has a grammar that may force tokens."""
    return isinstance(request.sampling.grammar, Cursor)


def _bad_words(sampling: Sampling, model: LanguageModel) -> tuple[tuple[int, ...], ...]:
    """Bad words as ids. A word given as text is banned with and without a space before it."""
    words: set[tuple[int, ...]] = set()
    tokenizer = getattr(model, "tokenizer", None)
    for word in sampling.bad_words:
        if not isinstance(word, str):
            words.add(tuple(int(token) for token in word))
        elif tokenizer is None:
            cure = "Pass it as token ids, or wrap the model with its tokenizer."
            raise InputError(explain("A bad word given as text needs a tokenizer.", word, cure))
        else:
            refuse_halves("A bad word", word)
            for form in (word, " " + word):
                words.add(tuple(tokenizer.encode(form, add_special_tokens=False)))
    return tuple(sorted(words - {()}))


def check_ids(name: str, ids: Any, model: LanguageModel) -> None:
    """Refuse anything but a list of token ids of the model."""
    listed: list[Any] = list(ids) if isinstance(ids, Iterable) else [None]
    if not all(isinstance(token, int | np.integer) for token in listed):
        raise wrong_type(name, ids, "Pass token ids, in a list even for one.")
    outside = [token for token in listed if not 0 <= token < model.vocab_size]
    if outside:
        cure = f"Ids must lie in 0 .. {model.vocab_size - 1}."
        wrong = f"{name} names tokens outside the vocabulary."
        raise InputError(explain(wrong, outside[:5], cure))


def refuse_processors(sampling: Sampling) -> None:
    """Refuse a processor that runs a model of its own, because its cache cannot be rolled back."""
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
