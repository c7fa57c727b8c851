"""`probe`: what a drafter would do for a target here, before anything is speculated.

Costs are timed and acceptance is computed, separately, because they answer to different things:
costs to the machine and the batch, acceptance to the texts and the temperature.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from forerun.drafters.base import Drafter, Guess
from forerun.drafters.model import Model
from forerun.engine.prompts import encode, is_one
from forerun.errors import InputError, explain
from forerun.measure.rehearsal import Overheard
from forerun.measure.round_costs import DraftCosts, TargetCosts, time_drafter, time_target
from forerun.measure.texts import Text, write_texts
from forerun.measure.traces import Trace, trace_of_guesses, traces_of_laws
from forerun.models.base import LanguageModel
from forerun.models.load import wrap
from forerun.renamed import renamed
from forerun.theory.arguments import as_count
from forerun.types import Drawn

Key = TypeVar("Key")
Traces = dict[tuple[float, Key], list[Trace]]  # one per text


@dataclass(frozen=True, eq=False)
class Subject:
    """A target with texts of its own at each temperature, and what its passes cost."""

    target: LanguageModel
    texts: dict[float, list[Text]]
    costs: TargetCosts
    batches: tuple[int, ...]
    max_draft_length: int
    trees: tuple[int, ...] = ()  # numbers of nodes, at most max_draft_length deep


@dataclass(frozen=True, eq=False)
class DrafterProbe:
    """A drafter before a subject: seconds of its drafts, and the fate of drafts along the texts."""

    subject: Subject
    drafter: str
    costs: DraftCosts
    traces: Traces[str]  # by temperature and rule: chains
    trees: Traces[int] = field(default_factory=dict)  # by temperature and nodes, under `match`

    def rules(self, temperature: float) -> list[str]:
        """The rules whose acceptance is known at this temperature."""
        return [rule for known, rule in self.traces if known == temperature]

    def acceptance_by_position(
        self, temperature: float, rule: str = "match", draft_length: int | None = None
    ) -> list[float]:
        """Acceptance of each slot given that it was reached, over all texts."""
        length = self.subject.max_draft_length if draft_length is None else draft_length
        pairs = [each.reached_and_accepted(length) for each in self.traces[temperature, rule]]
        reached = np.sum([pair[0] for pair in pairs], axis=0)
        accepted = np.sum([pair[1] for pair in pairs], axis=0)
        rates: list[float] = (accepted / np.maximum(reached, 1e-12)).tolist()
        return rates


def probe(
    target: Any,
    drafter: Drafter,
    prompts: Any,
    *,
    temperatures: Sequence[float] = (0.0,),
    batches: Sequence[int] = (1,),
    max_draft_length: int = 8,
    trees: Sequence[int] = (),
    max_new_tokens: int = 64,
    seed: int = 0,
) -> DrafterProbe:
    """Time what a round is made of, and compute what would become of drafts.

    prompts: like those of `generate`, best the ones you care about; their answers are written
    first, by plain decoding.  No draft length is run end to end: any up to max_draft_length can
    be priced from what this finds (`forecast`).  trees: numbers of nodes, tried out one by one.
    """
    subject = look_at(
        target,
        prompts,
        temperatures=temperatures,
        batches=batches,
        max_draft_length=max_draft_length,
        trees=trees,
        max_new_tokens=max_new_tokens,
        seed=seed,
    )
    return try_out(subject, drafter)


def look_at(
    target: Any,
    prompts: Any,
    *,
    temperatures: Sequence[float] = (0.0,),
    batches: Sequence[int] = (1,),
    max_draft_length: int = 8,
    trees: Sequence[int] = (),
    max_new_tokens: int = 64,
    seed: int = 0,
) -> Subject:
    """The target's half of a probe, which several drafters may share."""
    model = wrap(target)
    as_count("max_draft_length", max_draft_length, minimum=1)
    sizes = tuple(sorted({as_count("batch", batch, minimum=1) for batch in batches}))
    asked = [prompts] if is_one(prompts) else list(prompts)
    encoded = list({tuple(encode(model, prompt)): None for prompt in asked})
    if not encoded or not sizes or not temperatures:
        received = f"{len(encoded)} prompts, batches {sizes}, temperatures {list(temperatures)}"
        raise InputError(explain("There is nothing to probe.", received, "Pass one of each."))
    texts = {
        temperature: write_texts(
            model,
            [list(tokens) for tokens in encoded],
            temperature=temperature,
            max_new_tokens=max_new_tokens,
            seed=seed,
            batch_size=max(8, *sizes),
        )
        for temperature in temperatures
    }
    grown = tuple(as_count("tree", nodes, minimum=1) for nodes in trees)
    longest = max(max_draft_length, *grown, 1)
    costs = time_target(model, texts[temperatures[0]], batches=sizes, longest=longest)
    return Subject(model, texts, costs, sizes, max_draft_length, grown)


def try_out(subject: Subject, drafter: Drafter) -> DrafterProbe:
    """The drafter's half of a probe."""
    texts = next(iter(subject.texts.values()))
    costs = time_drafter(
        subject.target,
        drafter,
        texts,
        subject.costs,
        batches=subject.batches,
        longest=subject.max_draft_length,
        trees=subject.trees,
    )
    found: Traces[str] = {}
    for temperature, own in subject.texts.items():
        by_rule = (
            _from_laws(subject, drafter, own)
            if isinstance(drafter, Model)
            else _from_guesses(subject, drafter, own)
        )
        found |= {(temperature, rule): traces for rule, traces in by_rule.items()}
    grown = {
        (temperature, nodes): [_overheard(subject, drafter, text, nodes)[0] for text in own]
        for temperature, own in subject.texts.items()
        for nodes in subject.trees
    }
    return DrafterProbe(subject, drafter.name, costs, found, grown)


def _from_laws(subject: Subject, drafter: Model, texts: list[Text]) -> dict[str, list[Trace]]:
    """A model that drafts has a law at every place: one pass of it prices every rule."""
    by_rule: dict[str, list[Trace]] = {}
    for text in texts:
        sampling = text.sampling
        if drafter.temperature is not None:
            sampling = replace(sampling, temperature=drafter.temperature)
        most = subject.max_draft_length
        for rule, trace in traces_of_laws(
            subject.target, drafter.model, text, sampling, most
        ).items():
            by_rule.setdefault(rule, []).append(trace)
    return by_rule


def _from_guesses(subject: Subject, drafter: Drafter, texts: list[Text]) -> dict[str, list[Trace]]:
    """Any other is asked at every place.  Law rules treat guesses without a law as `match` does."""
    pairs = [_overheard(subject, drafter, text) for text in texts]
    has_no_law = all(each.drawn is Drawn.POINT for _, guesses in pairs for each in guesses)
    traces = [trace for trace, _ in pairs]
    return dict.fromkeys(("match", "ratio", "block") if has_no_law else ("match",), traces)


def _overheard(
    subject: Subject, drafter: Drafter, text: Text, tree: int | None = None
) -> tuple[Trace, list[Guess]]:
    """What a drafter would have guessed at every place of a text, and what would come of it.

    The text is written once more for that, alone: what a drafter may remember of one text is no
    part of a run on the next.
    """
    listener = Overheard(drafter)
    (again,) = write_texts(
        subject.target,
        [text.prompt],
        temperature=text.sampling.temperature,
        max_new_tokens=len(text.output),
        seed=text.sampling.seed or 0,
        drafter=listener,
        draft_length=subject.max_draft_length,
        tree=tree,
    )
    trace = trace_of_guesses(again, listener.guesses, subject.max_draft_length)
    return trace, listener.guesses


if not TYPE_CHECKING:  # a type checker knows the new name only
    __getattr__ = renamed(__name__, {"Probe": "DrafterProbe"})
