"""Executors carry out the plans of rounds: their protocol, and the reference implementation.

The stepwise executor drafts, scores, decides and commits, one after another. It serves any model,
drafter and rule, and every other executor must decide as it does. A round without a drafter, or in
which the drafter guesses nothing, is plain decoding: its draft is empty.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from forerun.base.arrays import HostArray, numpy_namespace, to_numpy
from forerun.base.clock import working
from forerun.drafters.base import Outcome
from forerun.engine.drafting import Drafting
from forerun.engine.laws import DraftLaws, TargetLaws
from forerun.engine.match_on_host import TargetNoise, walk
from forerun.engine.plan import Load, RoundPlan, Span
from forerun.engine.proposal import Drafted, Proposal
from forerun.models.base import Kept, LanguageModel
from forerun.noise.race import Key, seed_key
from forerun.rules.base import Rule, Trial
from forerun.rules.match import Match
from forerun.rules.types import DraftLength
from forerun.trees.tree import Tree


@dataclass(frozen=True)
class Decision:
    """The result of executing a plan: for each answered span, the accepted tokens and the one after
    them."""

    drafted: Drafted
    paths: Sequence[Sequence[int]]  # (A,): the accepted nodes of each draft
    extra: Sequence[int]  # (A,): the token after them
    laws: TargetLaws  # for log-probabilities, and for processors that keep state
    times: Sequence[float]  # (4,): when the draft began, the score, the decision, and its end
    is_overlapped: bool = False  # the next round is on its way: what follows costs no time
    is_timed: bool = True  # nothing else was done in that time
    load: Load | None = None  # of the round that took that time; None: the plan's
    room: int | None = None  # prompt tokens that the next round takes beside answers; None: any
    costs_drafts: bool = False  # rounds that read prompts have no drafts, and others have
    waiting: frozenset[int] = frozenset()
    """The indices of the spans whose first token comes only with the next round, which is already
    running."""

    @property
    def drafts(self) -> Sequence[Proposal]:
        """The scored draft of each answered span, (A,)."""
        return self.drafted.proposals

    def tokens(self, index: int) -> list[int]:
        """The new tokens of an answered span: the accepted ones of its draft, then the extra
        one."""
        drafted = self.drafted.proposals[index].tokens
        return [*(drafted[node] for node in self.paths[index]), self.extra[index]]


class Stepwise:
    """Executes plans on the rows of one target, one stage after another.

    It reads the clock only to report how long each stage took.
    """

    def __init__(self, target: LanguageModel, state: Any, drafting: Drafting, rule: Rule) -> None:
        self.target = target
        self.state = state
        if hasattr(state, "is_read_on_host"):
            state.is_read_on_host = True  # the rules read NumPy arrays
        self.rule = rule
        self._row_race = getattr(target, "row_race", None)
        self._drafting = drafting
        self._keyed: list[int] = []  # requests of the last decision that drew noise, whose
        self._key: Key | None = None  # noise keys these are,
        self._noise_drawn: dict[int, Any] = {}  # with noise for the positions ahead of them

    def catch_up(self, plan: RoundPlan) -> None:
        """Repeat the changes of rows that the planning process made before this plan.

        Only executors in other processes need this; in the planning process the changes were made
        already.
        """
        for verb, arguments in plan.changes:
            if verb == "leave":
                self._drafting.release(arguments[0], {})
            else:
                getattr(self.target, verb)(self.state, *arguments)

    def execute(self, plan: RoundPlan) -> Decision:
        """Draft, score and decide. Nothing is stored until `commit`."""
        times = [working()]
        drafted = self._drafting.propose(plan)
        drafts = drafted.proposals
        times.append(working())
        logits = self._score(plan, drafts)
        times.append(working())
        laws, paths, extra = self.decide(plan.answering, drafts, logits)
        times.append(working())
        return Decision(drafted, paths, extra, laws, times)

    def commit(self, plan: RoundPlan, decision: Decision, counts: Sequence[int]) -> None:
        """Store counts[i] new tokens of the i-th answered span. If the drafter was asked in this
        round, tell it the outcome."""
        answers = zip(plan.answering, decision.paths, decision.drafts, counts, strict=True)
        kept: list[Kept] = [
            _kept(span.end - span.start, path[:count], draft)
            for span, path, draft, count in answers
        ]
        kept += [span.end - span.start for span in plan.reading]
        spans = [*plan.answering, *plan.reading]
        self.target.commit(self.state, [span.row for span in spans], kept)
        if self._drafting.drafter is None:
            return
        if self._drafting.can_wait(plan):
            added = [decision.tokens(index)[:count] for index, count in enumerate(counts)]
            self._drafting.postpone(spans, added + [[]] * len(plan.reading), self._processed)
        else:
            outcomes = self._outcomes(plan, decision, counts)
            self._drafting.observe(outcomes, [span.request for span in spans])

    def _outcomes(
        self, plan: RoundPlan, decision: Decision, counts: Sequence[int]
    ) -> list[Outcome]:
        """The reports for the drafter about all rows, including rows that only read."""
        outcomes: list[Outcome] = []
        for index, (span, count) in enumerate(zip(plan.answering, counts, strict=True)):
            path, draft = decision.paths[index], decision.drafts[index]
            outcomes.append(
                Outcome(
                    span.row,
                    len(path),
                    decision.tokens(index)[:count],
                    draft.in_guess(path),
                    len(draft.tokens),
                    *self._processed(span.row),
                )
            )
        return outcomes + [
            Outcome(span.row, 0, (), (), 0, *self._processed(span.row)) for span in plan.reading
        ]

    def _processed(self, row: int) -> tuple[Any, int]:
        """The row's hidden states that the drafter reads (None if it reads none), and the number of
        its tokens that the model has processed."""
        if not self._drafting.layers:
            return None, 0
        target: Any = self.target
        shown = getattr(self.state, "shown", self.state.lengths)  # some store less than they show
        return target.watched(self.state, row), shown[row]

    def _score(self, plan: RoundPlan, drafts: Sequence[Proposal]) -> HostArray:
        """The target's logits (A, K + 1, V) for the answered spans, after the text and after each
        guess."""
        return to_numpy(self._score_on_device(plan, drafts))

    def _score_on_device(self, plan: RoundPlan, drafts: Sequence[Proposal]) -> Any:
        """The logits of `_score` on the device where the model computes."""
        rows = [span.row for span in (*plan.answering, *plan.reading)]
        feeds = [
            span.tokens + draft.tokens for span, draft in zip(plan.answering, drafts, strict=True)
        ]
        feeds += [span.tokens for span in plan.reading]
        num_logits = [len(draft.tokens) + 1 for draft in drafts] + [1] * len(plan.reading)
        if all(draft.tree is None for draft in drafts):
            scored = self.target.score(self.state, rows, feeds, num_logits)
        else:
            parents = [None if draft.tree is None else draft.tree.parents for draft in drafts]
            parents += [None] * len(plan.reading)
            scored = self.target.score(self.state, rows, feeds, num_logits, parents)
        return scored[: len(drafts)] if plan.reading else scored

    def decide(
        self, spans: Sequence[Span], drafts: Sequence[Proposal], logits: HostArray
    ) -> tuple[TargetLaws, list[Sequence[int]], list[int]]:
        """Apply the rule. Returns the target's laws, the accepted nodes of each row, and the tokens
        after them."""
        requests = [span.request for span in spans]
        if not requests:
            return TargetLaws([], [], logits), [], []
        laws = TargetLaws(requests, drafts, logits)
        if type(self.rule) is Match:
            return laws, *walk(drafts, laws, lambda: self._noise(spans))
        lengths = np.array([len(draft.tokens) for draft in drafts])
        tokens = np.zeros((len(drafts), int(lengths.max())), dtype=np.int64)
        for row, draft in enumerate(drafts):
            tokens[row, : len(draft.tokens)] = draft.tokens
        trees = None
        if any(draft.tree is not None for draft in drafts):
            trees = [draft.tree or Tree.chain(len(draft.tokens)) for draft in drafts]
        draft_laws = DraftLaws(drafts, self.target.vocab_size)
        trial = Trial(numpy_namespace(), tokens, lengths, laws, draft_laws, trees=trees)
        reached, extra = self.rule.decide(trial, self._noise(spans))
        ends = to_numpy(reached).tolist()
        paths = [draft.path(end - 1) for draft, end in zip(drafts, ends, strict=True)]
        return laws, paths, to_numpy(extra).tolist()

    def _noise(self, spans: Sequence[Span]) -> TargetNoise:
        """The noise of a round. Its keys are made again only when the set of requests changes."""
        numbers = [span.request.number for span in spans]
        if self._key is None or numbers != self._keyed:
            self._key = seed_key(numpy_namespace(), [span.request.seed for span in spans], None)
            self._keyed, self._noise_drawn = numbers, {}
        positions = np.array([span.request.num_output for span in spans])
        return TargetNoise(
            numpy_namespace(), self._key, positions, drawn=self._noise_drawn,
            row_race=self._row_race,
        )  # fmt: skip


def _kept(num_fed: int, path: Sequence[int], draft: Proposal) -> Kept:
    """The part of a fed text and draft that the model keeps: a number of tokens, or for a tree a
    list of positions."""
    if draft.tree is None:
        return num_fed + len(path)
    return [*range(num_fed), *(num_fed + node for node in path)]


class Executor(Protocol):
    """Executes plans on the rows of one target."""

    def execute(self, plan: RoundPlan) -> Decision:
        """Draft, score and decide. Nothing is stored until `commit`."""
        ...

    def commit(self, plan: RoundPlan, decision: Decision, counts: Sequence[int]) -> None:
        """Store counts[i] new tokens of the i-th answered span. The requests already contain
        them."""
        ...


class Setup(NamedTuple):
    """The facts about an engine that its executor needs."""

    target: LanguageModel
    state: Any  # the rows of the target
    drafting: Drafting
    rule: Rule
    tree: int | Tree | None  # None: drafts are chains
    draft_length: DraftLength


ChooseExecutor = Callable[[Setup], Executor]
"""A function that chooses the executor for the plans of one engine."""


def step_by_step(setup: Setup) -> Executor:
    """Make the executor that serves any model, drafter and rule."""
    return Stepwise(setup.target, setup.state, setup.drafting, setup.rule)
