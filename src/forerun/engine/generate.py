"""`generate` and `stream`: run an engine until all prompts are answered."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from inspect import signature
from typing import Any, Literal, ParamSpec, get_args

from forerun import rules
from forerun.drafters.base import Drafter
from forerun.drafters.forced import Forced
from forerun.drafters.verbs import check_verbs
from forerun.engine.checks import (
    check_choice,
    check_counts,
    given_of,
    idle_options,
    limits_of,
    samplings_of,
)
from forerun.engine.engine import Engine
from forerun.engine.intake import has_grammar, make_samples
from forerun.engine.prompts import is_one
from forerun.engine.request import Request
from forerun.engine.results import Generation, LogprobsOf, Piece
from forerun.errors import GenerationError
from forerun.models.load import wrap
from forerun.rules.base import Rule
from forerun.sampling import Sampling
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
    logprobs_of: LogprobsOf = "model",
    resume: Sequence[Any] = (),
    batch_size: int = 8,
    errors: Literal["raise", "return"] = "raise",
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
        prompt gives a list of n generations.  One seed for a list of prompts answers each as it
        would alone, so equal prompts get equal texts; n, or a seed for each, makes them differ.
    stop: strings that end the text and are left out of it.  stop_tokens: ids that end it, beside
        the model's own unless ignore_eos.
    logprobs: report each token's log-probability and those of that many likeliest tokens.
    logprobs_of: "model" reports the model's own, as OpenAI does; "sampling" those of the
        distribution that tokens were sampled from, after temperature, top-p and the rest.
    resume: output tokens that exist already, for a list of prompts one list for each.  The text
        goes on after them exactly as it would have under `match`, and max_new_tokens counts them.
    batch_size: how many requests share a pass.
    errors: "raise" raises a `GenerationError` if a request fails on the way (NaN logits, a
        processor that raises), after the others have been answered, and carries all results;
        "return" returns them, the failed one with its `error`.
    """
    run = _Run(
        target, prompt, drafter, draft_length, tree, rule, sampling, max_new_tokens, stop,
        stop_tokens, ignore_eos, logprobs, logprobs_of, resume, batch_size, errors,
    )  # fmt: skip
    try:
        while run.engine.busy:
            run.engine.step()
    finally:
        run.engine.close()
    run.raise_failure()
    return run.results()


Options = ParamSpec("Options")


def _called_like(
    function: Callable[Options, Any],
) -> Callable[[Callable[..., Stream]], Callable[Options, Stream]]:
    """Give a function the arguments of another, for people, editors and type checkers."""

    def change(other: Callable[..., Stream]) -> Callable[Options, Stream]:
        other.__signature__ = signature(function).replace(  # type: ignore[attr-defined]
            return_annotation="Stream"
        )
        return other

    return change


@_called_like(generate)
def stream(*args: Any, **options: Any) -> Stream:
    """Like `generate`, but yields a `Piece` whenever a round gave a request something to show.

    Pieces of several prompts interleave and carry the prompt's index, and the sample's.  A request
    that fails ends with a piece whose finish_reason is "error"; the stream raises at its end.
    """
    bound = signature(generate).bind(*args, **options)
    bound.apply_defaults()
    return Stream(_Run(**bound.arguments, is_paced=True))


class Stream(Iterator[Piece]):
    """Pieces as they come; dropping or closing it cancels the rest."""

    def __init__(self, run: _Run) -> None:
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
        """What there is by now of the answer to one of the prompts (its first sample)."""
        return self._run.requests[sum(self._run.counts[:index])].generation()

    def results(self) -> Any:
        """What `generate` would have returned, as far as it got; this ends the stream."""
        self.close()
        return self._run.results()


def _pieces(run: _Run) -> Generator[Piece, None, Any]:
    try:
        while run.engine.busy:
            for request, gained in run.engine.step():
                yield piece_of(request, gained)
        run.raise_failure()
    finally:
        run.engine.close()
    return run.results()


def piece_of(request: Request, gained: int) -> Piece:
    """What the last round gave a request to show."""
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
        logprobs_of: LogprobsOf,
        resume: Sequence[Any],
        batch_size: int,
        errors: Literal["raise", "return"],
        is_paced: bool = False,
    ) -> None:
        model = wrap(target)
        check_counts(draft_length, logprobs=logprobs, batch_size=batch_size)
        check_choice("errors", errors, ("raise", "return"))
        check_choice("logprobs_of", logprobs_of, get_args(LogprobsOf))
        self.raises = errors == "raise"
        self.has_one_prompt = is_one(prompt)
        prompts = [prompt] if self.has_one_prompt else list(prompt)
        samplings = samplings_of(sampling, len(prompts))
        limits = limits_of(max_new_tokens, len(prompts))
        if drafter is not None:
            check_verbs(drafter)
        beginnings = given_of(resume, len(prompts), is_one=self.has_one_prompt)
        self.counts = [sampling.n for sampling in samplings]
        self.requests: list[Request] = []
        for index, (single_prompt, options, limit, given) in enumerate(
            zip(prompts, samplings, limits, beginnings, strict=True)
        ):
            self.requests += make_samples(
                model,
                single_prompt,
                options,
                index=index,
                max_new_tokens=limit,
                stop=stop,
                stop_tokens=stop_tokens,
                ignore_eos=ignore_eos,
                num_logprobs=logprobs,
                logprobs_of=logprobs_of,
                given=given,
            )
        if drafter is None and (note := idle_options(draft_length, tree)):
            for request in self.requests:
                request.stats.notes.append(note)
        if drafter is not None and any(has_grammar(request) for request in self.requests):
            drafter = Forced(drafter)
        lengths = [len(request.prompt) + request.limit for request in self.requests]
        self.engine = Engine(
            model,
            drafter=drafter,
            draft_length=draft_length,
            tree=tree,
            rule=rules.get(rule),
            num_rows=max(1, min(batch_size, len(self.requests))),
            capacity=max(lengths, default=1),
            is_paced=is_paced,
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
        """Generations in the shape of the call."""
        done = iter([request.generation() for request in self.requests])
        grouped: list[Generation | list[Generation]] = []
        for count in self.counts:
            group = [next(done) for _ in range(count)]
            grouped.append(group[0] if count == 1 else group)
        return grouped[0] if self.has_one_prompt else grouped
