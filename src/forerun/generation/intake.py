"""From a prompt and its options to a request that fits the model, or the reason why it does not."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from forerun.base.errors import InputError, explain, shown
from forerun.engine.request import Request
from forerun.engine.results import LogprobsOf
from forerun.engine.text import TextStream
from forerun.generation.checks import check_ids, refuse_processors, stops_of
from forerun.generation.prompts import encode, refuse_halves
from forerun.grammars.base import NOTHING_ALLOWED, Cursor, Grammar
from forerun.models.base import LanguageModel, endings_of
from forerun.noise.race import fold
from forerun.rules.types import DraftLength
from forerun.sampling.options import Bans, Sampling, allowed_after


def make_samples(
    model: LanguageModel,
    prompt: Any,
    sampling: Sampling,
    *,
    index: int = 0,
    stop: str | Sequence[str] = (),
    stop_tokens: Sequence[int] = (),
    ignore_eos: bool = False,
    given: Sequence[int] = (),
    **options: Any,
) -> list[Request]:
    """The requests for the n samples of one prompt; options as in `make_request`."""
    if given and sampling.n > 1:
        cure = "Resume each sample as a request of its own, with its own seed."
        raise InputError(explain("Several samples cannot share an output.", sampling.n, cure))
    check_ids("stop_tokens", stop_tokens, model)
    stops = stops_of(stop)
    tokens = encode(model, prompt)
    seed = secrets.randbits(63) if sampling.seed is None else sampling.seed
    biases = dict(sampling.logit_bias)  # ours: the caller's may change while it is answered
    return [
        make_request(
            model,
            tokens,
            replace(sampling, seed=fold(seed, sample), logit_bias=biases),
            index=index,
            sample=sample,
            stops=stops,
            endings=tuple(stop_tokens) + (() if ignore_eos else ending_tokens(model)),
            given=given,
            **options,
        )
        for sample in range(sampling.n)
    ]


def make_request(
    model: LanguageModel,
    prompt: list[int],
    sampling: Sampling,
    *,
    index: int = 0,
    sample: int = 0,
    max_new_tokens: int,
    stops: Sequence[str] = (),
    endings: Sequence[int] = (),
    num_logprobs: int | None = None,
    logprobs_of: LogprobsOf = "model",
    given: Sequence[int] = (),
    owner: str = "",
    draft_length: DraftLength | None = None,
    priority: int = 0,
    deadline: float | None = None,
) -> Request:
    """A request that fits the model, or the reason why it does not.

    given: output that exists already; max_new_tokens counts it.
    draft_length: guesses in a row at most; None and "auto" leave it to the engine.
    """
    if max_new_tokens < 1:
        raise InputError(explain("max_new_tokens is too small.", max_new_tokens, "Use 1 or more."))
    tokenizer = getattr(model, "tokenizer", None)
    if stops and tokenizer is None:
        cure = "Use stop_tokens, or wrap the model with its tokenizer."
        raise InputError(explain("Stop strings need a tokenizer.", list(stops), cure))
    room = max_new_tokens if model.max_context is None else model.max_context - len(prompt)
    if room < 1:
        received = f"{len(prompt)} tokens for a context of {model.max_context}"
        cure = f"Shorten it to {(model.max_context or 1) - 1} tokens or fewer."
        raise InputError(explain("The prompt leaves no room in the context.", received, cure))
    if not isinstance(priority, int):
        raise InputError(explain("priority is no whole number.", shown(priority), "Use 0, 1, ..."))
    if not isinstance(owner, str):
        raise InputError(explain("owner is no text.", shown(owner), "Use a name, or leave it out."))
    refuse_processors(sampling)
    check_ids("logit_bias", sampling.logit_bias, model)
    for word in sampling.bad_words:
        check_ids("bad_words", () if isinstance(word, str) else word, model)
    if isinstance(sampling.grammar, Grammar):
        sampling, endings = _with_cursor(model, sampling, sampling.grammar, endings)
    text = None if tokenizer is None else TextStream(tokenizer, stops, sampling.min_tokens)
    limit = min(max_new_tokens, room)
    _check_given(given, model, limit, endings, text)
    return Request(
        index=index,
        prompt=prompt,
        sampling=sampling,
        seed=sampling.seed or 0,
        limit=limit,
        limit_reason="length" if max_new_tokens <= room else "context",
        endings=tuple(endings),
        bans=Bans(_bad_words(sampling, model), tuple(endings)),
        num_logprobs=num_logprobs,
        logprobs_of=logprobs_of,
        text=text,
        sample=sample,
        given=given,
        owner=owner,
        draft_length=None if draft_length == "auto" else draft_length,
        priority=priority,
        deadline=deadline,
    )


def _check_given(
    given: Sequence[int],
    model: LanguageModel,
    limit: int,
    endings: Sequence[int],
    text: TextStream | None,
) -> None:
    """Refuse output that leaves nothing to generate; the rest becomes the beginning of the text."""
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


def ending_tokens(model: LanguageModel) -> tuple[int, ...]:
    """The ids with which the model itself ends a text, as transformers finds them."""
    stated = getattr(model, "endings", None)
    ids = endings_of(getattr(model, "model", None)) if stated is None else stated
    return tuple(sorted({int(token) for token in ids if 0 <= token < model.vocab_size}))


def _with_cursor(
    model: LanguageModel, sampling: Sampling, grammar: Grammar, endings: Sequence[int]
) -> tuple[Sampling, Sequence[int]]:
    """Options whose grammar has a matcher of its own, and the tokens that end the text.

    Nothing can follow the end of a grammar, so its ending tokens end the text in any case.
    """
    tokenizer = getattr(model, "tokenizer", None)
    last = getattr(tokenizer, "eos_token_id", None)
    ends = ending_tokens(model) or (() if last is None else (last,)) or tuple(endings)
    cursor = Cursor(lambda: grammar.matcher(tokenizer, model.vocab_size, ends))
    _refuse_empty(grammar, cursor, model.vocab_size, ends)
    return replace(sampling, grammar=cursor), tuple(dict.fromkeys((*endings, *ends)))


def _refuse_empty(grammar: Grammar, cursor: Cursor, vocab_size: int, ends: Sequence[int]) -> None:
    """Refuse a grammar that allows nothing, or nothing but an empty text."""
    received = f"{shown(grammar):.80}"
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
    """Bad words as ids; a word given as text is banned with and without a space before it."""
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
