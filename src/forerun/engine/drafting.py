"""Calls the drafter for an executor, checks its guesses, and survives its failures.

If a drafter raises, the requests it was drafting for go on without drafts. Its state is discarded,
and later requests start with a fresh one. After several failures it is not called any more.

A drafter that is not asked in a round costs hardly any time: it receives the news of such rounds
together, before it is next asked, when the request ends, or when many hidden states have piled up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from forerun.base.arrays import joined
from forerun.base.errors import (
    ForerunError,
    UnsupportedError,
    ends_process,
    explain,
    shown,
    warn,
)
from forerun.drafters.base import Drafter, Outcome, Part, Turn, assign, close, layers_of
from forerun.engine.plan import DraftPlan, RoundPlan, Span
from forerun.engine.proposal import NOTHING, Drafted, checked
from forerun.engine.request import Request
from forerun.models.base import Inspectable, LanguageModel
from forerun.rules.base import Rule

HARMLESS = "The text is not affected."
MOST_FAILURES = 3
"""After this many failures, a drafter is not asked again."""


MOST_STATES = 256
"""The most hidden states of a row (some kilobytes each) that are kept while its drafter is not
asked."""

LOST = object()
"""Stands in for a drafter's state that was discarded and has to be made again."""


@dataclass
class Untold:
    """The rounds of one row that have not been reported to the drafter yet."""

    tokens: list[int] = field(default_factory=list)  # added to the text
    states: list[Any] = field(default_factory=list)  # of each round, (N, F), where it reads them
    num_states: int = 0
    num_processed: int = 0

    def outcome(self, row: int) -> Outcome:
        """All the postponed rounds of this row as one outcome."""
        states = joined(self.states) if self.states else None
        return Outcome(row, 0, self.tokens, (), 0, states, self.num_processed)


class Drafting:
    """The drafter of one executor, with its state and the rows it knows."""

    def __init__(self, drafter: Drafter | None, target: LanguageModel, rule: Rule) -> None:
        self.drafter = drafter
        self.target = target
        self.rule = rule
        self.layers: tuple[int, ...] = ()  # whose hidden states it receives; known after its start
        self.abandoned: set[int] = set()  # rows that are done without until they are released
        self.note: str | None = None  # why there are no drafts any more
        self._state: Any = LOST
        self._told: set[int] = set()  # rows that this state knows the text of
        self._untold: dict[int, Untold] = {}  # what has been added to these texts since
        self._num_failures = 0

    def start(self, num_rows: int, capacity: int, rows: Any) -> None:
        """Start the drafter. It raises if it cannot work with this target."""
        self._start = (num_rows, capacity, rows)
        if self.drafter is None:
            return
        try:
            self._state = self.drafter.start(self.target, *self._start)
        except ForerunError:
            raise
        except Exception as error:
            wrong = f"The drafter {self.name} did not start with the target {self.target.name}."
            cure = "Correct its `start`, or leave the drafter out."
            raise UnsupportedError(
                explain(wrong, f"{type(error).__name__}: {error}", cure)
            ) from error
        self.layers = layers_of(self.drafter)
        if self.layers:
            if not isinstance(self.target, Inspectable):
                wrong = f"The hidden states of {self.target.name} cannot be read."
                cure = f"Use a transformers model, or a drafter other than {self.name}."
                raise UnsupportedError(explain(wrong, type(self.target).__name__, cure))
            self.target.watch(rows, self.layers)

    @property
    def name(self) -> str:
        """The drafter's name, for notes and errors."""
        return shown(getattr(self.drafter, "name", type(self.drafter).__name__), str)

    @property
    def state(self) -> Any:
        """The drafter's state; a new one if the last one was discarded."""
        assert self.drafter is not None
        if self._state is LOST:
            self._state = self.drafter.start(self.target, *self._start)
        return self._state

    def propose(self, plan: RoundPlan) -> Drafted:
        """Ask the drafter as planned. Returns one checked draft per answered span; it may be
        empty."""
        proposals, asked = [NOTHING] * len(plan.answering), plan.drafts.asked
        self._enter(plan.spans)
        if self.drafter is None or not asked:
            return Drafted(proposals)
        self._catch_up(plan.spans)
        is_trial = plan.drafts.is_trial
        if self._state is LOST:  # it has just failed on a new text
            return Drafted(proposals, 0, is_trial)
        spans = [plan.answering[index] for index in asked]
        turns = [_turn(span, plan.drafts, index) for span, index in zip(spans, asked, strict=True)]
        guesses: Any = ()
        try:
            shared = not self.rule.needs_draft_probs
            guesses = self.drafter.propose(self._state, turns, shared_noise=shared)
            if not isinstance(guesses, Sequence):
                cure = "`propose` must return a list with a Guess for each turn."
                raise UnsupportedError(explain("it gave no list of guesses.", guesses, cure))
            guesses = list(guesses)
            if len(guesses) != len(turns):
                cure = f"There must be one for each of the {len(turns)} turns."
                wrong = "it gave another number of guesses."
                raise UnsupportedError(explain(wrong, len(guesses), cure))
        except BaseException as error:
            self._lose_state(error, {span.row: span.request for span in spans})
            return Drafted(proposals, 0, is_trial)
        broken: list[tuple[Span, BaseException]] = []
        for span, index, turn, guess in zip(spans, asked, turns, guesses, strict=True):
            try:
                proposals[index] = checked(turn, guess, self.target, self.rule)
            except BaseException as error:
                broken.append((span, error))
        for span, reason in broken:
            self._abandon(reason, {span.row: span.request})
        if broken:
            self._count_failure()
        height = max(proposals[index].height for index in asked)
        if plan.drafts.tariff is not None:
            drafts = plan.drafts.tariff.trim([proposals[index] for index in asked])
            for index, draft in zip(asked, drafts, strict=True):
                proposals[index] = draft
        by_span: list[Any] = [None] * len(proposals)
        for index, guess in zip(asked, guesses, strict=True):
            by_span[index] = getattr(guess, "asked", ())
        return Drafted(proposals, height, is_trial, by_span)

    def _enter(self, spans: Sequence[Span]) -> None:
        """Give the drafter the texts of rows that it does not know yet and may be asked about."""
        known = self._told | self.abandoned
        new = [span for span in spans if span.row not in known and span.request.is_drafted_for]
        if self.drafter is None or not new:
            return
        try:
            for span in new:
                request = span.request
                assign(self.drafter, self.state, span.row, request.owner)
                self.drafter.enter(self.state, span.row, tuple(request.tokens), len(request.prompt))
                self._told.add(span.row)
        except BaseException as error:
            self._lose_state(error, {span.row: span.request for span in new})

    def observe(self, outcomes: Sequence[Outcome], requests: Sequence[Request]) -> None:
        """Tell the drafter what was decided in the rows it knows. If it raises, these rows go on
        without it."""
        pairs = [
            (outcome, request)
            for outcome, request in zip(outcomes, requests, strict=True)
            if outcome.row in self._told and outcome.row not in self.abandoned
        ]
        if self.drafter is None or not pairs:
            return
        try:
            self.drafter.observe(self._state, [outcome for outcome, _ in pairs])
        except BaseException as error:
            self._lose_state(error, {outcome.row: request for outcome, request in pairs})

    def can_wait(self, plan: RoundPlan) -> bool:
        """Whether the drafter can learn of a round later, because the round asked it for
        nothing."""
        return not plan.drafts.asked

    def postpone(
        self,
        spans: Sequence[Span],
        added: Sequence[Sequence[int]],
        processed: Callable[[int], tuple[Any, int]],
    ) -> None:
        """Save the report on a round in which the drafter was asked for nothing, to give it later.

        added: tokens that each text has gained.
        processed: returns, for a row, the hidden states that the drafter reads
        (None if it reads none) and the number of tokens they cover.
        """
        for span, tokens in zip(spans, added, strict=True):
            row = span.row
            if row in self._told and row not in self.abandoned:
                untold = self._untold.get(row)
                if untold is None:
                    untold = self._untold[row] = Untold()
                untold.tokens += tokens
                states, untold.num_processed = processed(row)
                if states is not None:
                    untold.states.append(states)
                    untold.num_states += len(states)
        self._catch_up([span for span in spans if self._is_full(span.row)])

    def _is_full(self, row: int) -> bool:
        return row in self._untold and self._untold[row].num_states >= MOST_STATES

    def _catch_up(self, spans: Sequence[Span]) -> None:
        """Tell the drafter of the rounds that were postponed for these rows."""
        late = [span for span in spans if span.row in self._untold]
        if not late:
            return
        outcomes = [self._untold.pop(span.row).outcome(span.row) for span in late]
        self.observe(outcomes, [span.request for span in late])

    def give_up(self, error: BaseException, requests: dict[int, Request]) -> None:
        """Stop drafting for these requests (by row), because the executor could not use their
        drafts."""
        self._abandon(error, requests)
        self._count_failure()

    def release(self, row: int, others: dict[int, Request]) -> None:
        """End the request of a row; `others` are the requests that go on, by row."""
        untold = self._untold.pop(row, None)
        if self.drafter is not None and row in self._told:
            try:
                if untold is not None and row not in self.abandoned:
                    self.drafter.observe(self._state, [untold.outcome(row)])
                self.drafter.release(self._state, row)
            except BaseException as error:
                self._lose_state(error, others)
        self._told.discard(row)
        self.abandoned.discard(row)

    def close(self) -> None:
        """Close the drafter; what it has learned stays available for later engines."""
        if self.drafter is not None and self._state is not LOST:
            state, self._state = self._state, LOST
            try:
                close(self.drafter, state)
            except BaseException as error:
                if ends_process(error):
                    raise
                warn(f"{self.name} failed at the end: {shown(error)}. {HARMLESS}")

    def _lose_state(self, error: BaseException, requests: dict[int, Request]) -> None:
        """Discard a state in which the drafter has raised: it may be inconsistent."""
        self._state = LOST
        self._told.clear()
        self._untold.clear()
        self._abandon(error, requests)
        self._count_failure()

    def _abandon(self, error: BaseException, requests: dict[int, Request]) -> None:
        """Let these requests (by row) go on without drafts, and write the reason into their
        notes."""
        if ends_process(error):
            raise error
        reason = f"{type(error).__name__}: {shown(error, str)}"
        note = f"{self.name} failed and was done without: {reason}"
        for row, request in requests.items():
            request.stats.notes.append(note)
            self.abandoned.add(row)
        if not self._num_failures:
            warn(f"{note.rstrip('.')}. {HARMLESS}")

    def _count_failure(self) -> None:
        self._num_failures += 1
        if self._num_failures == MOST_FAILURES:
            self.note = f"{self.name} failed {MOST_FAILURES} times and was done without"
            self.drafter = None


def _turn(span: Span, plan: DraftPlan, index: int) -> Turn:
    """The turn that the drafter receives for the answered span with this index."""
    request, limits = span.request, plan.limits[index]
    assert limits is not None, "the drafter is not asked about this span"
    first = Part(0) if limits.prices is None else limits.prices.parts[0]
    return Turn(
        span.row,
        limits.budget,
        request.sampling,
        request.seed,
        request.num_output,
        limits.depth,
        limits.shape,
        first.worth,
        first.goes_on,
        limits.prices,
        request.limit - request.num_output,
    )
