"""`probe`: predicts what a drafter gains for a target on this machine, without speculating.

Costs are timed and acceptance is computed separately, because they depend on different things:
costs on the machine and the batch, acceptance on the texts and the temperature.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from forerun.base.errors import InputError, explain, shown_by
from forerun.drafters.base import Drafter, Guess
from forerun.drafters.model import Model
from forerun.generation.choosing import drafter_for
from forerun.generation.prompts import encode, prompts_of
from forerun.loading.named import model_of
from forerun.measure.round_costs import DraftCosts, TargetCosts, time_drafter, time_target
from forerun.measure.sized_drafters import Overheard
from forerun.measure.texts import Text, write_texts
from forerun.measure.traces import Trace, trace_of_guesses, traces_of_laws
from forerun.models.base import LanguageModel
from forerun.rules.types import Drawn
from forerun.theory.arguments import as_count

Key = TypeVar("Key")
Report = Callable[[str], None]  # told what begins
Traces = dict[tuple[float, Key], list[Trace]]  # one per text
TIMING_PASSES, TIMING_DRAFTS = 7.0, 4.0  # how long they take, where drafting along a text takes 1


@dataclass(frozen=True, eq=False)
class Subject:
    """A target, texts it wrote at each temperature, and the costs of its passes."""

    target: LanguageModel
    texts: dict[float, list[Text]]
    costs: TargetCosts
    batches: tuple[int, ...]
    max_draft_length: int
    trees: tuple[int, ...] = ()  # node counts; the trees are at most max_draft_length deep


@dataclass(frozen=True, eq=False, repr=False)
class DrafterProbe:
    """A drafter tried on a subject: seconds of its drafts, and their survival along the texts."""

    subject: Subject
    drafter: str
    costs: DraftCosts
    traces: Traces[str]  # by temperature and rule: chains
    trees: Traces[int] = field(default_factory=dict)  # by temperature and nodes, under `match`

    def __repr__(self) -> str:
        """The probe in one line; the fields have the rest."""
        num_texts = sum(map(len, self.subject.texts.values()))
        longest = self.subject.max_draft_length
        return f"DrafterProbe({self.drafter} on {num_texts} texts, drafts of up to {longest})"

    def rules(self, temperature: float) -> list[str]:
        """The rules whose acceptance is known at this temperature."""
        return [rule for known, rule in self.traces if known == temperature]

    def acceptance_by_position(
        self, temperature: float, rule: str = "match", draft_length: int | None = None
    ) -> list[float]:
        """Acceptance rate of each draft slot, given that the slot was reached, over all texts."""
        length = self.subject.max_draft_length if draft_length is None else draft_length
        pairs = [trace.reached_and_accepted(length) for trace in self.traces[temperature, rule]]
        reached = np.sum([pair[0] for pair in pairs], axis=0)
        accepted = np.sum([pair[1] for pair in pairs], axis=0)
        rates: list[float] = (accepted / np.maximum(reached, 1e-12)).tolist()
        return rates


@shown_by('fr.probe(target, "ngram", ["Once upon a time", ...])')
def probe(
    target: Any,
    drafter: Drafter | str,
    prompts: Any,
    *,
    temperatures: Sequence[float] = (0.0,),
    batches: Sequence[int] = (1,),
    max_draft_length: int = 8,
    trees: Sequence[int] = (),
    max_new_tokens: int = 64,
    seed: int = 0,
) -> DrafterProbe:
    """Time the stages of a round, and compute how much of each draft would be accepted.

    prompts: as for `generate`; use prompts like those you will serve.  Plain decoding writes
    their answers first.  No draft length is run end to end: `forecast` prices any length up to
    max_draft_length from this probe.
    trees: node counts of trees; each is tried separately.
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
    chosen = drafter_for(subject.target, drafter)
    if chosen is None:
        raise InputError(explain("There is nothing to probe.", "no drafter", "Name a drafter."))
    return try_out(subject, chosen)


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
    report: Report = lambda what: None,
) -> Subject:
    """The target's part of a probe: its texts and costs, which several drafters may share.

    report: called with a description of each of the steps that `step_sizes` counts.
    """
    model = model_of(target)
    as_count("max_draft_length", max_draft_length, minimum=1)
    sizes = tuple(sorted({as_count("batch", batch, minimum=1) for batch in batches}))
    asked, _ = prompts_of(prompts)
    encoded = list({tuple(encode(model, prompt)): None for prompt in asked})
    if not encoded or not sizes or not temperatures:
        received = f"{len(encoded)} prompts, batches {sizes}, temperatures {list(temperatures)}"
        raise InputError(explain("There is nothing to probe.", received, "Pass one of each."))
    texts = {}
    for temperature in temperatures:
        report(f"writing {len(encoded)} texts at temperature {temperature:g}")
        texts[temperature] = write_texts(
            model,
            [list(tokens) for tokens in encoded],
            temperature=temperature,
            max_new_tokens=max_new_tokens,
            seed=seed,
            batch_size=max(8, *sizes),
        )
    grown = tuple(as_count("tree", nodes, minimum=1) for nodes in trees)
    longest = max(max_draft_length, *grown, 1)
    report("timing the passes of the target")
    costs = time_target(model, texts[temperatures[0]], batches=sizes, longest=longest)
    return Subject(model, texts, costs, sizes, max_draft_length, grown)


def step_sizes(
    num_drafters: int, num_prompts: int, num_temperatures: int, num_trees: int
) -> list[float]:
    """The expected duration of each step that `look_at`, and then `try_out` of this many drafters,
    report, in units of one text of the default model."""
    of_drafter = [TIMING_DRAFTS, *[1.0] * (num_prompts * num_temperatures * (1 + num_trees))]
    writing = [float(num_prompts)] * num_temperatures
    return [*writing, TIMING_PASSES, *of_drafter * num_drafters]


def try_out(
    subject: Subject, drafter: Drafter, *, report: Report = lambda what: None
) -> DrafterProbe:
    """The drafter's part of a probe: draft costs, and survival along the subject's texts."""
    report(f"timing the drafts of {drafter.name}")
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
    chains: Traces[str] = {}
    for temperature, texts_at in subject.texts.items():
        by_rule = (
            _from_laws(subject, drafter, texts_at, report)
            if isinstance(drafter, Model)
            else _from_guesses(subject, drafter, texts_at, report)
        )
        chains |= {(temperature, rule): traces for rule, traces in by_rule.items()}
    grown = {
        (temperature, nodes): [
            _overheard(subject, drafter, text, report, nodes)[0] for text in texts_at
        ]
        for temperature, texts_at in subject.texts.items()
        for nodes in subject.trees
    }
    return DrafterProbe(subject, drafter.name, costs, chains, grown)


def _from_laws(
    subject: Subject, drafter: Model, texts: list[Text], report: Report
) -> dict[str, list[Trace]]:
    """The traces of a drafting model, whose law at every position comes from one pass, for every
    rule."""
    by_rule: dict[str, list[Trace]] = {}
    for text in texts:
        report(f"drafting with {drafter.name}")
        sampling = text.sampling
        if drafter.temperature is not None:
            sampling = replace(sampling, temperature=drafter.temperature)
        most = subject.max_draft_length
        for rule, trace in traces_of_laws(
            subject.target, drafter.model, text, sampling, most
        ).items():
            by_rule.setdefault(rule, []).append(trace)
    return by_rule


def _from_guesses(
    subject: Subject, drafter: Drafter, texts: list[Text], report: Report
) -> dict[str, list[Trace]]:
    """The traces of any other drafter, which is asked for a guess at every position.

    Rules that use the draft's law treat guesses without a law as `match` does.
    """
    pairs = [_overheard(subject, drafter, text, report) for text in texts]
    has_no_law = all(guess.drawn is Drawn.POINT for _, guesses in pairs for guess in guesses)
    traces = [trace for trace, _ in pairs]
    return dict.fromkeys(("match", "ratio", "block") if has_no_law else ("match",), traces)


def _overheard(
    subject: Subject, drafter: Drafter, text: Text, report: Report, tree: int | None = None
) -> tuple[Trace, list[Guess]]:
    """The guesses of a drafter at every position of a text, and their trace.

    The target writes the text again in a call of its own, so that nothing the drafter remembers
    from one text influences its guesses on the next.
    """
    report(f"drafting with {drafter.name}" + ("" if tree is None else f", trees of {tree}"))
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
