"""Executors carry out an engine's plans: their protocol, and the one that serves any model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from forerun.engine.drafting import Drafting
from forerun.engine.plan import RoundPlan
from forerun.engine.stepwise import Decision, Stepwise
from forerun.models.base import LanguageModel
from forerun.rules.base import Rule
from forerun.rules.types import DraftLength
from forerun.trees.tree import Tree


class Executor(Protocol):
    """Executes plans on the rows of one target."""

    def execute(self, plan: RoundPlan) -> Decision:
        """Draft, score and decide; nothing is kept until `commit`."""
        ...

    def commit(self, plan: RoundPlan, decision: Decision, counts: Sequence[int]) -> None:
        """Keep what became text: counts[i] tokens of the i-th answer.  Requests hold their new
        texts by now."""
        ...


class ChooseExecutor(Protocol):
    """Chooses who executes the plans of one engine."""

    def __call__(
        self,
        target: LanguageModel,
        state: Any,
        drafting: Drafting,
        rule: Rule,
        *,
        tree: int | Tree | None,
        draft_length: DraftLength,
    ) -> Executor: ...


def step_by_step(
    target: LanguageModel,
    state: Any,
    drafting: Drafting,
    rule: Rule,
    *,
    tree: int | Tree | None,
    draft_length: DraftLength,
) -> Executor:
    """The executor that serves any model, drafter and rule."""
    return Stepwise(target, state, drafting, rule)
