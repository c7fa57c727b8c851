"""`plan`: which drafter, draft length and rule to use here, or that speculation does not pay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from forerun.base.errors import InputError, explain, shown_by
from forerun.drafters.base import Drafter
from forerun.generation.choosing import Drafters, drafters_for
from forerun.loading.named import model_of
from forerun.measure.held_out import FEWEST_PROMPTS, Answer, answer
from forerun.measure.pricing import Forecast, forecast
from forerun.measure.probe import DrafterProbe, Report, look_at, try_out

RULES = ("match", "ratio", "block")
"""The lossless rules for chains; the first is preferred if it is within `ABOUT_AS_FAST`."""

ABOUT_AS_FAST = 0.02
"""`match` is chosen if it is at most this share slower: only `match` keeps the exact text."""

ADAPTS = (
    "Forecasts are of fixed lengths; draft length auto, the default, drafts where that pays as it "
    "goes: `forerun sweep --draft-length 0,auto` measures it."
)


@dataclass(frozen=True)
class SpeculationPlan:
    """The chosen setting, and the forecasts of all settings it was compared with."""

    target: str
    drafter: Drafter | None  # None: do not speculate
    drafter_name: str | None  # its key in `drafters`
    choice: Forecast | None
    forecasts: tuple[Forecast, ...]  # one per setting, in the order they were tried
    batch: int
    temperature: float
    num_prompts: int

    @property
    def speculates(self) -> bool:
        """Whether the plan is to speculate at all."""
        return self.choice is not None

    def __str__(self) -> str:
        best = max(self.forecasts, key=lambda setting: setting.speedup.mean)
        choice = self.choice or best
        setting = f"{choice.drafter}, {_draft(choice)}, under {choice.rule} at batch {self.batch}"
        kind = answer(choice.speedup, self.num_prompts)
        if kind is Answer.NO:
            return (
                f"Do not speculate at batch {self.batch}: the fastest forecast, {best.drafter} "
                f"with {_draft(best)}, is {_words(best)} plain decoding. {ADAPTS}"
            )
        if kind is Answer.NOT_CLEAR:
            few = self.num_prompts < FEWEST_PROMPTS
            why = f"{self.num_prompts} prompts are too few" if few else "the interval contains 1"
            return (
                f"Not clear whether speculation pays: {why}. The fastest "
                f"forecast is {setting}: {_words(choice)} plain decoding. {ADAPTS}"
            )
        return f"Draft with {setting}: expect {_words(choice)} plain decoding."


@shown_by('fr.plan(target, ["ngram", "suffix"], ["Once upon a time", ...])')
def plan(
    target: Any,
    drafters: Drafters,
    prompts: Any,
    *,
    batch: int = 1,
    temperature: float = 0.0,
    rules: Sequence[str] = RULES,
    max_draft_length: int = 8,
    trees: Sequence[int] = (),
    max_new_tokens: int = 64,
    seed: int = 0,
    report: Report = lambda what: None,
) -> SpeculationPlan:
    """Probe the drafters and choose the setting with the fastest forecast on this machine.

    drafters: one drafter or several, as objects or by their names on the command line: "ngram",
    ["ngram", "heads:folder"], or {"mine": Mine()}. prompts: as for `generate`; use prompts like
    those you will serve. rules: the lossless rules to consider, where their acceptance can be
    computed. trees: node counts of trees to consider too, under `match`, as deep as
    max_draft_length. report: called at each step with a description of it;
    `forerun.measure.probe.step_sizes` lists the steps.
    """
    if unknown := [rule for rule in rules if rule not in RULES]:
        cure = f"Chains can be planned under {', '.join(RULES)}."
        raise InputError(explain("A rule cannot be planned with.", unknown, cure))
    model = model_of(target)
    named = drafters_for(model, drafters)
    if not named or not rules:
        raise InputError(explain("There is nothing to choose from.", "none", "Name a drafter."))
    subject = look_at(
        model,
        prompts,
        temperatures=(temperature,),
        batches=(batch,),
        max_draft_length=max_draft_length,
        trees=trees if "match" in rules else (),
        max_new_tokens=max_new_tokens,
        seed=seed,
        report=report,
    )
    probes = {name: try_out(subject, one, report=report) for name, one in named.items()}
    return choose(probes, named, batch=batch, temperature=temperature, rules=rules)


def choose(
    probes: Mapping[str, DrafterProbe],
    drafters: Mapping[str, Drafter],
    *,
    batch: int,
    temperature: float,
    rules: Sequence[str] = RULES,
) -> SpeculationPlan:
    """The setting with the highest forecast speed-up; plain decoding if no forecast exceeds 1."""
    names: dict[Forecast, str] = {}
    subject = next(iter(probes.values())).subject
    for name, probe in probes.items():
        setting: dict[str, Any] = {"batch": batch, "temperature": temperature}
        longest = probe.subject.max_draft_length
        for rule in _different_rules(probe, temperature, rules):
            for length in range(1, longest + 1):
                names[forecast(probe, draft_length=length, rule=rule, **setting)] = name
        for nodes in probe.subject.trees:
            names[forecast(probe, draft_length=longest, tree=nodes, **setting)] = name
    best = max(names, key=lambda candidate: candidate.speedup.mean)
    threshold = best.speedup.mean * (1 - ABOUT_AS_FAST)
    close = [candidate for candidate in names if candidate.speedup.mean > threshold]
    preferred = min(close, key=lambda near: (rules.index(near.rule), -near.speedup.mean))
    pays = preferred.speedup.mean > 1
    chosen = names[preferred] if pays else None
    return SpeculationPlan(
        target=subject.target.name,
        drafter=None if chosen is None else drafters[chosen],
        drafter_name=chosen,
        choice=preferred if pays else None,
        forecasts=tuple(names),
        batch=batch,
        temperature=temperature,
        num_prompts=len(subject.texts[temperature]),
    )


def _different_rules(probe: DrafterProbe, temperature: float, rules: Sequence[str]) -> list[str]:
    """The rules that the probe covers, or only one of them where they all accept the same drafts.
    That is so under greedy decoding, and for guesses without a law."""
    known = [rule for rule in rules if rule in probe.rules(temperature)]
    traces = {rule: probe.traces[temperature, rule] for rule in known}
    is_same = temperature == 0 or all(traces[rule] is traces[known[0]] for rule in known)
    return known[:1] if is_same else known


def _draft(setting: Forecast) -> str:
    tree = "" if setting.tree is None else f"a tree of {setting.tree} nodes, "
    return f"{tree}K = {setting.draft_length}"


def _words(setting: Forecast) -> str:
    return f"{setting.speedup.mean:.2f}x [{setting.speedup.low:.2f}, {setting.speedup.high:.2f}]"
