"""One call of `generate` or `stream`: its requests in an engine, and the shape of its results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from forerun import rules
from forerun.base.errors import GenerationError, InputError, explain, shown
from forerun.drafters.base import Drafter
from forerun.drafters.forced import Forced
from forerun.engine.answer_options import AnswerOptions, check_choice, check_counts
from forerun.engine.engine import Engine
from forerun.engine.request import Request
from forerun.engine.results import Generation
from forerun.generation.choosing import drafter_for, idle_options
from forerun.generation.intake import has_grammar, make_samples
from forerun.generation.prompts import encode, prompts_of
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
        """Generations in the shape of the call."""
        done = iter([request.generation() for request in self.requests])
        grouped: list[Generation | list[Generation]] = []
        for count in self.counts:
            group = [next(done) for _ in range(count)]
            grouped.append(group[0] if count == 1 else group)
        return grouped[0] if self.has_one_prompt else grouped


def _with(options: AnswerOptions, sampling: Sampling, limit: int) -> AnswerOptions:
    """The options of the next prompt, which are mostly those of the one before."""
    if sampling is options.sampling and limit is options.max_new_tokens:
        return options
    return replace(options, sampling=sampling, max_new_tokens=limit)


def _each(value: Any, count: int, name: str, kind: Any) -> Sequence[Any]:
    """One value per prompt, of a value of this kind for all prompts or a list of them."""
    if isinstance(value, kind | str) or not isinstance(value, Sequence):
        return [value] * count
    if len(value) != count:
        cure = f"Pass one for all, or a list of {count}."
        received = f"{len(value)} for {count} prompt{'s' * (count != 1)}"
        raise InputError(explain(f"{name} does not fit the prompts.", received, cure))
    return value


def _outputs(resume: Any, count: int) -> Sequence[Any]:
    """The output that exists already of each of several prompts; none is given for all of them."""
    is_list = isinstance(resume, Sequence) and not isinstance(resume, str)
    if not is_list or len(resume) not in (0, count):
        cure = f"Pass a list of {count} lists of tokens, empty ones included."
        raise InputError(explain("resume does not fit the prompts.", f"{shown(resume):.80}", cure))
    return resume or [()] * count
