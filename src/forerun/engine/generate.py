"""`generate` and `stream`: two faces of the engine's loop."""

from __future__ import annotations

import secrets
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from typing import Any

from forerun import rules
from forerun.drafters.base import Drafter
from forerun.drafters.forced import Forced
from forerun.drafters.verbs import check_verbs
from forerun.engine.checks import (
    check_counts,
    check_ids,
    idle_options,
    limits_of,
    refuse_processors,
    samplings_of,
)
from forerun.engine.engine import Engine
from forerun.engine.prompts import encode, is_one
from forerun.engine.request import Request
from forerun.engine.results import Generation, Piece
from forerun.engine.text import TextStream
from forerun.errors import InputError, explain
from forerun.grammars.base import Cursor, Grammar
from forerun.models.base import LanguageModel
from forerun.models.load import wrap
from forerun.noise import fold
from forerun.rules.base import Rule
from forerun.sampling import Bans, Sampling
from forerun.tree import Tree
from forerun.types import DraftLength

GREEDY = Sampling(temperature=0.0)


def generate(
    target: Any,
    prompt: Any,
    *,
    drafter: Drafter | None = None,
    draft_length: DraftLength = "auto",
    tree: int | Tree | None = None,
    rule: str | Rule = "match",
    sampling: Sampling | Sequence[Sampling] = GREEDY,
    max_new_tokens: int | Sequence[int] = 128,
    stop: str | Sequence[str] = (),
    stop_tokens: Sequence[int] = (),
    ignore_eos: bool = False,
    logprobs: int | None = None,
    batch_size: int = 8,
) -> Any:
    """Generate from one prompt (a `Generation`) or from a list of them (a list).

    target: a model from `forerun.load` or `forerun.wrap`, a transformers model, or a function.
    prompt: text, token ids, or chat messages; or a list of any of these.
    drafter: what guesses ahead; None is plain decoding through the same loop.
    draft_length: how many guesses may follow one another; 0 is none at all, and "auto" chooses
        anew in every round what pays on this machine, which never changes the text under `match`.
    tree: None for a chain of guesses; a number of nodes for trees that grow as the drafter sees
        fit, which only `match` allows; or a `Tree` to fill, whatever draft_length is above 0.
    sampling, max_new_tokens: for all prompts, or one for each.  With sampling.n above 1 each
        prompt gives a list of n generations.
    stop: strings that end the text and are left out of it.  stop_tokens: ids that end it, beside
        the model's own unless ignore_eos.
    logprobs: report each token's log-probability and those of that many likeliest tokens.
    batch_size: how many requests share a pass.
    """
    run = _Run(
        target, prompt, drafter, draft_length, tree, rule, sampling, max_new_tokens, stop,
        stop_tokens, ignore_eos, logprobs, batch_size,
    )  # fmt: skip
    while run.engine.busy:
        run.engine.step()
    return run.results()


def stream(
    target: Any,
    prompt: Any,
    *,
    drafter: Drafter | None = None,
    draft_length: DraftLength = "auto",
    tree: int | Tree | None = None,
    rule: str | Rule = "match",
    sampling: Sampling | Sequence[Sampling] = GREEDY,
    max_new_tokens: int | Sequence[int] = 128,
    stop: str | Sequence[str] = (),
    stop_tokens: Sequence[int] = (),
    ignore_eos: bool = False,
    logprobs: int | None = None,
    batch_size: int = 8,
) -> Stream:
    """Like `generate`, but yields a `Piece` whenever a round gave a request something to show.

    Pieces of several prompts interleave and carry the prompt's index, and the sample's.
    """
    run = _Run(
        target, prompt, drafter, draft_length, tree, rule, sampling, max_new_tokens, stop,
        stop_tokens, ignore_eos, logprobs, batch_size,
    )  # fmt: skip
    return Stream(run)


class Stream(Iterator[Piece]):
    """Pieces as they come; dropping or closing it cancels the rest."""

    def __init__(self, run: _Run) -> None:
        self._run = run
        self._pieces = _pieces(run)

    def __next__(self) -> Piece:
        return next(self._pieces)

    def close(self) -> None:
        self._pieces.close()

    def results(self) -> Any:
        """What `generate` would have returned, as far as it got; this ends the stream."""
        self.close()
        return self._run.results()


def _pieces(run: _Run) -> Generator[Piece, None, Any]:
    try:
        while run.engine.busy:
            for request, gained in run.engine.step():
                yield _piece(request, gained)
    finally:
        run.engine.cancel()
    return run.results()


def _piece(request: Request, gained: int) -> Piece:
    ended = request.finish_reason is not None
    found = [] if request.text is None else request.text.release_parts(final=ended)
    return Piece(
        [(part, request.fates[token]) for token, part in found],
        request.tokens[len(request.tokens) - gained :],
        request.fates[len(request.fates) - gained :],
        request.index,
        request.sample,
        request.finish_reason,
    )


class _Run:
    """One call: its requests in an engine, and the shape its results are wanted in."""

    def __init__(
        self,
        target: Any,
        prompt: Any,
        drafter: Drafter | None,
        draft_length: DraftLength,
        tree: int | Tree | None,
        rule: str | Rule,
        sampling: Sampling | Sequence[Sampling],
        max_new_tokens: int | Sequence[int],
        stop: str | Sequence[str],
        stop_tokens: Sequence[int],
        ignore_eos: bool,
        logprobs: int | None,
        batch_size: int,
    ) -> None:
        model = wrap(target)
        check_counts(draft_length, logprobs, batch_size)
        self.one = is_one(prompt)
        prompts = [prompt] if self.one else list(prompt)
        samplings = samplings_of(sampling, len(prompts))
        limits = limits_of(max_new_tokens, len(prompts))
        if drafter is not None:
            check_verbs(drafter)
        stops = (stop,) if isinstance(stop, str) else tuple(stop)
        check_ids("stop_tokens", stop_tokens, model)
        endings = tuple(stop_tokens) + (() if ignore_eos else ending_tokens(model))
        self.counts = [each.n for each in samplings]
        self.requests: list[Request] = []
        for index, (one, wanted, limit) in enumerate(zip(prompts, samplings, limits, strict=True)):
            tokens = encode(model, one)
            seed = secrets.randbits(63) if wanted.seed is None else wanted.seed
            for sample in range(wanted.n):
                self.requests.append(
                    make_request(
                        model,
                        tokens,
                        replace(wanted, seed=fold(seed, sample)),
                        index=index,
                        sample=sample,
                        max_new_tokens=limit,
                        stops=stops,
                        endings=endings,
                        num_logprobs=logprobs,
                    )
                )
        if drafter is None and (note := idle_options(draft_length, tree)):
            for request in self.requests:
                request.stats.notes.append(note)
        if drafter is not None and any(_has_cursor(each) for each in self.requests):
            drafter = Forced(drafter)
        longest = max((len(each.prompt) + each.limit for each in self.requests), default=1)
        self.engine = Engine(
            model,
            drafter=drafter,
            draft_length=draft_length,
            tree=tree,
            rule=rules.get(rule),
            num_slots=max(1, min(batch_size, len(self.requests))),
            capacity=longest,
        )
        for request in self.requests:
            self.engine.submit(request)

    def results(self) -> Any:
        """Generations in the shape of the call."""
        done = iter([request.generation() for request in self.requests])
        grouped: list[Generation | list[Generation]] = []
        for count in self.counts:
            group = [next(done) for _ in range(count)]
            grouped.append(group[0] if count == 1 else group)
        return grouped[0] if self.one else grouped


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
) -> Request:
    """A request that fits the model, or the reason why it does not."""
    if max_new_tokens < 1:
        raise InputError(explain("max_new_tokens is too small.", max_new_tokens, "Use 1 or more."))
    if any(stop == "" for stop in stops):
        cure = "Leave it out, or pass the text that should end the answer."
        raise InputError(explain("A stop string is empty.", list(stops), cure))
    tokenizer = getattr(model, "tokenizer", None)
    if stops and tokenizer is None:
        cure = "Use stop_tokens, or wrap the model with its tokenizer."
        raise InputError(explain("Stop strings need a tokenizer.", list(stops), cure))
    room = max_new_tokens if model.max_context is None else model.max_context - len(prompt)
    if room < 1:
        received = f"{len(prompt)} tokens for a context of {model.max_context}"
        cure = f"Shorten it to {(model.max_context or 1) - 1} tokens or fewer."
        raise InputError(explain("The prompt leaves no room in the context.", received, cure))
    refuse_processors(sampling)
    check_ids("logit_bias", sampling.logit_bias, model)
    for word in sampling.bad_words:
        check_ids("bad_words", () if isinstance(word, str) else word, model)
    if isinstance(sampling.grammar, Grammar):
        sampling, endings = _with_cursor(model, sampling, sampling.grammar, endings)
    return Request(
        index=index,
        prompt=prompt,
        sampling=sampling,
        seed=sampling.seed or 0,
        limit=min(max_new_tokens, room),
        limit_reason="length" if max_new_tokens <= room else "context",
        endings=tuple(endings),
        bans=Bans(_bad_words(sampling, model), tuple(endings)),
        num_logprobs=num_logprobs,
        text=None if tokenizer is None else TextStream(tokenizer, stops, sampling.min_tokens),
        sample=sample,
    )


def ending_tokens(model: LanguageModel) -> tuple[int, ...]:
    """The ids with which the model itself ends a text, as transformers finds them."""
    inner = getattr(model, "model", None)
    for config in (getattr(inner, "generation_config", None), getattr(inner, "config", None)):
        ids = getattr(config, "eos_token_id", None)
        if ids is not None:
            found = [ids] if isinstance(ids, int) else ids
            return tuple(sorted({int(token) for token in found if 0 <= token < model.vocab_size}))
    return ()


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
    return replace(sampling, grammar=cursor), tuple(dict.fromkeys((*endings, *ends)))


def _has_cursor(request: Request) -> bool:
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
            for form in (word, " " + word):
                words.add(tuple(tokenizer.encode(form, add_special_tokens=False)))
    return tuple(sorted(words - {()}))
