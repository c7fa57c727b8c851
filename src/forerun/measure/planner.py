"""`plan`: which drafter, draft length and rule to use here, or that speculation does not pay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forerun.drafters.base import Drafter
from forerun.errors import InputError, explain
from forerun.measure.pricing import Forecast, forecast
from forerun.measure.probe import DrafterProbe, look_at, try_out
from forerun.renamed import renamed

RULES = ("match", "ratio", "block")
"""The lossless rules for chains; the first is preferred where it is about as fast."""

ABOUT_AS_FAST = 0.02
"""What `match` may lose and still be chosen: only it keeps the text whatever is drafted."""


@dataclass(frozen=True)
class SpeculationPlan:
    """The best setting found, everything it was compared with, and how sure that is."""

    target: str
    drafter: Drafter | None  # None: do not speculate
    drafter_name: str | None  # as it was called in the question
    choice: Forecast | None
    forecasts: tuple[Forecast, ...]  # all settings, as tried
    batch: int
    temperature: float

    @property
    def speculates(self) -> bool:
        return self.choice is not None

    def __str__(self) -> str:
        best = max(self.forecasts, key=lambda each: each.speedup.mean)
        if self.choice is None:
            return (
                f"Do not speculate at batch {self.batch}: the best found, {best.drafter} with "
                f"{_draft(best)}, would run at {_words(best)} of plain decoding."
            )
        found = self.choice
        sure = "" if found.speedup.low > 1 else "; it may as well not pay"
        return (
            f"Draft with {found.drafter}, {_draft(found)}, under {found.rule} at batch "
            f"{self.batch}: {_words(found)} plain decoding{sure}."
        )


def plan(
    target: Any,
    drafters: Drafter | Mapping[str, Drafter],
    prompts: Any,
    *,
    batch: int = 1,
    temperature: float = 0.0,
    rules: Sequence[str] = RULES,
    max_draft_length: int = 8,
    trees: Sequence[int] = (),
    max_new_tokens: int = 64,
    seed: int = 0,
) -> SpeculationPlan:
    """Probe the drafters and choose what is predicted to be fastest on this machine.

    drafters: one, or several by name.  prompts: like those of `generate`; plan with those you
    have.  rules: lossless ones to choose among, where their acceptance can be computed.  trees:
    numbers of nodes to try as well, under `match`, as deep as max_draft_length.
    """
    named = drafters if isinstance(drafters, Mapping) else {drafters.name: drafters}
    if not named or not rules:
        raise InputError(explain("There is nothing to choose from.", "none", "Name a drafter."))
    if unknown := [rule for rule in rules if rule not in RULES]:
        cure = f"Chains can be planned under {', '.join(RULES)}."
        raise InputError(explain("A rule cannot be planned with.", unknown, cure))
    subject = look_at(
        target,
        prompts,
        temperatures=(temperature,),
        batches=(batch,),
        max_draft_length=max_draft_length,
        trees=trees if "match" in rules else (),
        max_new_tokens=max_new_tokens,
        seed=seed,
    )
    probes = {name: try_out(subject, drafter) for name, drafter in named.items()}
    return choose(probes, dict(named), batch=batch, temperature=temperature, rules=rules)


def choose(
    probes: Mapping[str, DrafterProbe],
    drafters: Mapping[str, Drafter],
    *,
    batch: int,
    temperature: float,
    rules: Sequence[str] = RULES,
) -> SpeculationPlan:
    """The fastest setting that probes know of; plain decoding if nothing beats it."""
    found: dict[Forecast, str] = {}
    for name, probe in probes.items():
        setting: dict[str, Any] = {"batch": batch, "temperature": temperature}
        longest = probe.subject.max_draft_length
        for rule in _different_rules(probe, temperature, rules):
            for length in range(1, longest + 1):
                found[forecast(probe, draft_length=length, rule=rule, **setting)] = name
        for nodes in probe.subject.trees:
            found[forecast(probe, draft_length=longest, tree=nodes, **setting)] = name
    best = max(found, key=lambda each: each.speedup.mean)
    close = [each for each in found if each.speedup.mean > best.speedup.mean * (1 - ABOUT_AS_FAST)]
    preferred = min(close, key=lambda each: (rules.index(each.rule), -each.speedup.mean))
    pays = preferred.speedup.mean > 1
    chosen = found[preferred] if pays else None
    return SpeculationPlan(
        target=next(iter(probes.values())).subject.target.name,
        drafter=None if chosen is None else drafters[chosen],
        drafter_name=chosen,
        choice=preferred if pays else None,
        forecasts=tuple(found),
        batch=batch,
        temperature=temperature,
    )


def _different_rules(probe: DrafterProbe, temperature: float, rules: Sequence[str]) -> list[str]:
    """Rules that the probe knows; greedy, or for guesses without a law, all do the same."""
    known = [rule for rule in rules if rule in probe.rules(temperature)]
    own = {rule: probe.traces[temperature, rule] for rule in known}
    is_same = temperature == 0 or all(own[rule] is own[known[0]] for rule in known)
    return known[:1] if is_same else known


def _draft(found: Forecast) -> str:
    tree = "" if found.tree is None else f"a tree of {found.tree} nodes, "
    return f"{tree}K = {found.draft_length}"


def _words(found: Forecast) -> str:
    return f"{found.speedup.mean:.2f}x [{found.speedup.low:.2f}, {found.speedup.high:.2f}]"


if not TYPE_CHECKING:  # a type checker knows the new name only
    __getattr__ = renamed(__name__, {"Plan": "SpeculationPlan"})
