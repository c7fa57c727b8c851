"""One call of `generate` or `stream`: its requests in an engine, and the shape of its results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

from forerun import rules
from forerun.base.errors import GenerationError
from forerun.drafters.base import Drafter
from forerun.drafters.forced import Forced
from forerun.engine.engine import Engine
from forerun.engine.request import Request
from forerun.engine.results import Generation, LogprobsOf
from forerun.generation.checks import (
    check_choice,
    check_counts,
    given_of,
    idle_options,
    limits_of,
    samplings_of,
)
from forerun.generation.choosing import drafter_for
from forerun.generation.intake import has_grammar, make_samples
from forerun.generation.prompts import prompts_of
from forerun.gpu_rounds.choosing import executor_of
from forerun.loading.named import model_of
from forerun.rules.base import Rule
from forerun.rules.types import DraftLength
from forerun.sampling.options import Sampling
from forerun.trees.tree import Tree


class Run:
    """A call on its way."""

    def __init__(
        self,
        target: Any,
        prompt: Any,
        drafter: Drafter | str | None,
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
        slowdown: float | None = None,
    ) -> None:
        model = model_of(target)
        check_counts(draft_length, logprobs=logprobs, batch_size=batch_size)
        check_choice("errors", errors, ("raise", "return"))
        check_choice("logprobs_of", logprobs_of, get_args(LogprobsOf))
        self.raises = errors == "raise"
        prompts, self.has_one_prompt = prompts_of(prompt)
        samplings = samplings_of(sampling, len(prompts))
        limits = limits_of(max_new_tokens, len(prompts))
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
        """Generations in the shape of the call."""
        done = iter([request.generation() for request in self.requests])
        grouped: list[Generation | list[Generation]] = []
        for count in self.counts:
            group = [next(done) for _ in range(count)]
            grouped.append(group[0] if count == 1 else group)
        return grouped[0] if self.has_one_prompt else grouped
