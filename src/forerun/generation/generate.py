"""`generate` and `stream`: run an engine until all prompts are answered."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from inspect import signature
from typing import Any, Generic, Literal, TypeVar, Unpack, overload

import numpy as np

from forerun import rules
from forerun.base.errors import GenerationError, InputError, explain, shown, shown_by
from forerun.drafters.base import Drafter
from forerun.drafters.forced import Forced
from forerun.engine.answer_options import GREEDY, AnswerOptions, check_choice, check_counts
from forerun.engine.engine import Engine
from forerun.engine.pacing import SLOWDOWN
from forerun.engine.request import Request
from forerun.engine.results import Generation, LogprobsOf, Piece
from forerun.generation.choosing import drafter_for, idle_options
from forerun.generation.intake import has_grammar, make_samples
from forerun.generation.options import GenerateOptions, refuses_unknown
from forerun.generation.prompts import ManyPrompts, OnePrompt, encode, prompts_of
from forerun.gpu_rounds.choosing import executor_of
from forerun.loading.named import model_of
from forerun.rules.base import Rule
from forerun.rules.types import DraftLength
from forerun.sampling.options import Sampling
from forerun.trees.tree import Tree

Target = Any
"""A model from `load` or `wrap`, a transformers model, a function, or the name of a model."""
Results = TypeVar("Results", covariant=True)


@overload
def generate(target: Any, prompt: OnePrompt, **options: Unpack[GenerateOptions]) -> Generation: ...
@overload
def generate(
    target: Any, prompt: ManyPrompts, **options: Unpack[GenerateOptions]
) -> list[Generation]: ...
@overload
def generate(target: Any, prompt: Any, **options: Unpack[GenerateOptions]) -> Any: ...
@refuses_unknown
@shown_by('fr.generate("HuggingFaceTB/SmolLM2-135M-Instruct", "Once upon a time")')
def generate(
    target: Target,
    prompt: OnePrompt | ManyPrompts | Any,
    *,
    drafter: Drafter | str | None = "auto",
    draft_length: DraftLength = "auto",
    tree: int | Tree | None = None,
    rule: str | Rule = "match",
    sampling: Sampling | Sequence[Sampling] = GREEDY,
    max_new_tokens: int | Sequence[int] = 128,
    stop: str | Sequence[str] = (),
    stop_tokens: Sequence[int] = (),
    ignore_eos: bool = False,
    logprobs: int | None = None,
    logprobs_of: LogprobsOf = "model",
    resume: Sequence[Any] = (),
    batch_size: int = 8,
    errors: Literal["raise", "return"] = "raise",
) -> Generation | list[Any]:
    """Generate from one prompt (a `Generation`) or from a list of them (a list).

    target: a model from `forerun.load` or `forerun.wrap`, a transformers model, or a function; or
    the name or folder of a model. The model loaded last by name is kept for the next call.
    prompt: text, token ids, chat messages, or what a tokenizer returned; or a list of any of these.
    drafter: what guesses ahead. "auto" is the trained drafter that fits the target (the shipped
    one, or one in the folder "drafter" inside the model's folder) with suffix lookup, or suffix
    lookup alone. Names as on the command line work too: "ngram", "heads:folder", a model's name,
    "heads+suffix". A model drafts as `forerun.drafters.Model`; make that once if you call often.
    None is plain decoding through the same loop.
    draft_length: how many guesses may follow one another. 0 is none at all, and "auto" chooses in
    every round what pays on this machine, which never changes the text under `match`.
    tree: None for a chain of guesses; a number of nodes for trees that grow as the drafter sees
    fit, which only `match` allows; or a `Tree` to fill, whatever draft_length is above 0.
    sampling, max_new_tokens: for all prompts, or one for each. With sampling.n above 1 each prompt
    gives a list of n generations, which the annotations do not show. With one seed for a list of
    prompts, each is answered as if it were alone, so equal prompts get equal texts; n, or a seed
    for each, makes them differ.
    stop: strings that end the text and are left out of it.
    stop_tokens: ids that end the text, in addition to the model's own unless ignore_eos.
    logprobs: report each token's log-probability, and those of this many likeliest tokens.
    logprobs_of: "model" reports the model's own, as OpenAI does; "sampling" those of the
    distribution that tokens were sampled from, after temperature, top-p and the rest.
    resume: output tokens that exist already; for several prompts, one list for each. The text
    continues exactly as it would have under `match`, and max_new_tokens counts these tokens.
    batch_size: how many requests share a pass.
    errors: what to do if a request fails on the way (NaN logits, a processor that raises). "raise"
    answers the others and then raises a `GenerationError` that carries all results; "return"
    returns them, the failed one with its `error`.
    """
    run = Run(
        target, prompt, drafter=drafter, draft_length=draft_length, tree=tree, rule=rule,
        sampling=sampling, max_new_tokens=max_new_tokens, stop=stop, stop_tokens=stop_tokens,
        ignore_eos=ignore_eos, logprobs=logprobs, logprobs_of=logprobs_of, resume=resume,
        batch_size=batch_size, errors=errors,
    )  # fmt: skip
    try:
        while run.engine.busy:
            run.engine.step()
    finally:
        run.engine.close()
    run.raise_failure()
    results: Generation | list[Any] = run.results()
    return results


Door = TypeVar("Door", bound=Callable[..., Any])


def _called_like(function: Callable[..., Any]) -> Callable[[Door], Door]:
    """A decorator that gives a function the signature of another, for people and editors."""

    def change(other: Door) -> Door:
        other.__signature__ = signature(function).replace(  # type: ignore[attr-defined]
            return_annotation="Stream"
        )
        return other

    return change


@overload
def stream(
    target: Any, prompt: OnePrompt, **options: Unpack[GenerateOptions]
) -> Stream[Generation]: ...
@overload
def stream(
    target: Any, prompt: ManyPrompts, **options: Unpack[GenerateOptions]
) -> Stream[list[Generation]]: ...
@overload
def stream(target: Any, prompt: Any, **options: Unpack[GenerateOptions]) -> Stream[Any]: ...
@refuses_unknown
@_called_like(generate)
@shown_by('fr.stream("HuggingFaceTB/SmolLM2-135M-Instruct", "Once upon a time")')
def stream(target: Target, prompt: Any, **options: Any) -> Stream[Any]:
    """Like `generate`, but yields a `Piece` whenever a round has new text for a request.

    Pieces of several prompts interleave; each has the index of its prompt and sample. A request
    that fails ends with a piece whose finish_reason is "error", and the stream raises at its end.
    `results()` gives what `generate` would have returned.
    """
    bound = signature(generate).bind(target, prompt, **options)
    bound.apply_defaults()
    return Stream(Run(**bound.arguments, slowdown=SLOWDOWN))


class Stream(Iterator[Piece], Generic[Results]):
    """Iterates over pieces as they come; closing or dropping it cancels unfinished requests."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._pieces = _pieces(run)

    def __next__(self) -> Piece:
        return next(self._pieces)

    def close(self) -> None:
        self._pieces.close()
        self._run.engine.close()  # a stream that was never read has not begun

    def __del__(self) -> None:
        self.close()

    def generation(self, index: int) -> Generation:
        """The answer so far to the prompt with this index (its first sample)."""
        return self._run.requests[sum(self._run.counts[:index])].generation()

    def results(self) -> Results:
        """End the stream and return what `generate` would have returned, with answers as far as
        they are."""
        self.close()
        done: Results = self._run.results()
        return done


def _pieces(run: Run) -> Generator[Piece, None, Any]:
    """Yield the pieces of all requests, round by round; closing the generator closes the engine."""
    try:
        while run.engine.busy:
            for request, gained in run.engine.step():
                yield piece_of(request, gained)
        run.raise_failure()
    finally:
        run.engine.close()
    return run.results()


def piece_of(request: Request, gained: int) -> Piece:
    """The piece of text that a request gained in the last round."""
    ended = request.finish_reason is not None
    parts = [] if request.text is None else request.text.release_parts(final=ended)
    logprobs = None
    if request.num_logprobs is not None:
        logprobs = request.logprobs[len(request.logprobs) - gained :]
    return Piece(
        [(part, request.fates[token]) for token, part in parts],
        request.tokens[len(request.tokens) - gained :],
        request.fates[len(request.fates) - gained :],
        request.index,
        request.sample,
        request.finish_reason,
        logprobs,
    )


class Run:
    """One running call of `generate` or `stream`."""

    def __init__(
        self,
        target: Any,
        prompt: Any,
        *,
        drafter: Drafter | str | None,
        draft_length: DraftLength,
        tree: int | Tree | None,
        rule: str | Rule,
        sampling: Sampling | Sequence[Sampling],
        max_new_tokens: int | Sequence[int],
        resume: Sequence[Any],
        batch_size: int,
        errors: Literal["raise", "return"],
        slowdown: float | None = None,
        **options: Any,
    ) -> None:
        """options: those of `AnswerOptions` that all prompts share; the others as in `generate`."""
        if isinstance(target, str) and (callable(prompt) or hasattr(prompt, "vocab_size")):
            cure = "The model stands first: generate(model, prompt)."
            wrong = "The target and the prompt are swapped."
            raise InputError(explain(wrong, f"{shown(target):.40}, {type(prompt).__name__}", cure))
        model = model_of(target)
        check_counts(draft_length, batch_size=batch_size)
        check_choice("errors", errors, ("raise", "return"))
        self.raises = errors == "raise"
        prompts, self.has_one_prompt = prompts_of(prompt)
        samplings = _each(sampling, len(prompts), "sampling", Sampling)
        limits = _each(max_new_tokens, len(prompts), "max_new_tokens", int | np.integer)
        outputs = [resume] if self.has_one_prompt else _outputs(resume, len(prompts))
        asked = AnswerOptions(**options)
        self.counts: list[int] = []  # samples of each prompt
        self.requests: list[Request] = []
        for index, one in enumerate(prompts):
            asked = _with(asked, samplings[index], limits[index])
            tokens, given = encode(model, one), outputs[index]
            self.requests += make_samples(model, tokens, asked, index=index, given=given)
            self.counts.append(asked.sampling.n)
        drafts_with = drafter_for(model, drafter)
        if drafts_with is None and (note := idle_options(draft_length, tree)):
            for request in self.requests:
                request.stats.notes.append(note)
        if drafts_with is not None and any(has_grammar(request) for request in self.requests):
            drafts_with = Forced(drafts_with)
        lengths = [len(request.prompt) + request.limit for request in self.requests]
        self.engine = Engine(
            model,
            drafter=drafts_with,
            draft_length=draft_length,
            tree=tree,
            rule=rules.trusted(rule),
            num_rows=max(1, min(batch_size, len(self.requests))),
            capacity=max(lengths, default=1),
            slowdown=slowdown,
            executor_of=executor_of,
        )
        for request in self.requests:
            self.engine.submit(request)

    def raise_failure(self) -> None:
        """Raise if a request failed, unless failures are to be returned."""
        failed = [request for request in self.requests if request.error is not None]
        if not failed or not self.raises:
            return
        first, num_others = failed[0], len(self.requests) - len(failed)
        which = "The request" if self.has_one_prompt else f"Request {first.index}"
        more = f" So did {len(failed) - 1} more." if len(failed) > 1 else ""
        message = (
            f"{which} failed {first.error}{more} The results, {num_others} of them complete, are "
            'in this exception\'s `results`; errors="return" returns them instead.'
        )
        raise GenerationError(message, self.results()) from first.cause

    def results(self) -> Any:
        """The generations, nested as the caller's prompts and samples."""
        done = iter([request.generation() for request in self.requests])
        grouped: list[Generation | list[Generation]] = []
        for count in self.counts:
            group = [next(done) for _ in range(count)]
            grouped.append(group[0] if count == 1 else group)
        return grouped[0] if self.has_one_prompt else grouped


def _with(options: AnswerOptions, sampling: Sampling, limit: int) -> AnswerOptions:
    """The previous prompt's options, with this prompt's sampling and limit; the same object if
    equal."""
    if sampling is options.sampling and limit is options.max_new_tokens:
        return options
    return replace(options, sampling=sampling, max_new_tokens=limit)


def _each(value: Any, count: int, name: str, kind: Any) -> Sequence[Any]:
    """One value per prompt, from a single value of type `kind` or a list of them."""
    if isinstance(value, kind | str) or not isinstance(value, Sequence):
        return [value] * count
    if len(value) != count:
        cure = f"Pass one for all, or a list of {count}."
        received = f"{len(value)} for {count} prompt{'s' * (count != 1)}"
        raise InputError(explain(f"{name} does not fit the prompts.", received, cure))
    return value


def _outputs(resume: Any, count: int) -> Sequence[Any]:
    """The existing output of each of `count` prompts; an empty `resume` means none."""
    is_list = isinstance(resume, Sequence) and not isinstance(resume, str)
    if not is_list or len(resume) not in (0, count):
        cure = f"Pass a list of {count} lists of tokens, empty ones included."
        raise InputError(explain("resume does not fit the prompts.", f"{shown(resume):.80}", cure))
    return resume or [()] * count
