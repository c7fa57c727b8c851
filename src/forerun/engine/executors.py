"""Who executes the plans of an engine: step by step, unless the target brings an executor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from forerun.engine.drafting import Drafting
from forerun.engine.plan import RoundPlan
from forerun.engine.stepwise import Decision, Stepwise
from forerun.models.base import LanguageModel
from forerun.rules.base import Rule
from forerun.tree import Tree
from forerun.types import DraftLength


class Executor(Protocol):
    """Executes plans on the rows of one target."""

    def execute(self, plan: RoundPlan) -> Decision:
        """Draft, score and decide; nothing is kept until `commit`."""
        ...

    def commit(self, plan: RoundPlan, decision: Decision, counts: Sequence[int]) -> None:
        """Keep what became text: counts[i] tokens of the i-th answer.  Requests hold their new
        texts by now."""
        ...


def executor_of(
    target: LanguageModel,
    state: Any,
    drafting: Drafting,
    rule: Rule,
    *,
    tree: int | Tree | None,
    draft_length: DraftLength,
) -> Executor:
    """The target's own executor, where it has a method `executor` that knows one for this drafter
    and rule; drafts are chains without a tree.  One whose rounds come in a few lengths has an
    attribute `ladder` (`engine/ladder_policy.py`)."""
    if hasattr(target, "executor"):
        made: Executor | None = target.executor(
            state, drafting, rule, tree=tree, draft_length=draft_length
        )
        if made is not None:
            return made
    return Stepwise(target, state, drafting, rule)
