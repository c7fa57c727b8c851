"""Captured rounds for drafters on the host, which read the text or hidden states of the target.

Guesses are copied to the device, where one graph scores and decides them. While the drafter guesses
nothing, rounds are those of plain decoding: each is launched before the last one's results are
known. If the drafter then makes a guess, the launched round is abandoned. No guess is asked for
while prompts are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from forerun.base.clock import working
from forerun.drafters import MTP, Block, Forced, Heads, Mixed, NGram, Suffix
from forerun.drafters.base import Outcome
from forerun.engine.drafting import Drafting
from forerun.engine.plan import DraftPlan, RoundPlan, Span
from forerun.engine.proposal import Proposal, worthwhile
from forerun.engine.steering.ladder_policy import Ladder
from forerun.engine.stepwise import Decision
from forerun.gpu.inference import inference
from forerun.gpu.rows import GpuRows
from forerun.gpu_rounds.blocks import Part
from forerun.gpu_rounds.device_drafter import DeviceDrafter
from forerun.gpu_rounds.executor import Captured
from forerun.gpu_rounds.flight import Departure, Flight, Landed
from forerun.rules.base import Rule
from forerun.rules.match import Match
from forerun.rules.types import DraftLength

SILENT = 2
"""After this many rounds in a row without a guess, the next round is launched before the drafter is
asked."""


class HostDrafts(Captured):
    """Executes plans with the guesses of a drafter on the host."""

    def __init__(
        self,
        target: Any,
        state: GpuRows,
        drafting: Drafting,
        rule: Rule,
        draft_length: DraftLength,
    ) -> None:
        super().__init__(
            target, state, DeviceDrafter(drafting, is_on_host=True), rule, draft_length
        )
        self._drafting = drafting
        self._num_silent = 0  # latest rounds without a guess
        self._places: dict[int, tuple[Flight, int]] = {}  # by number: the last round, and its lane

    @property
    def ladder(self) -> Ladder | None:
        """None: there are no fixed draft lengths, because a draft is as long as the guess."""
        return None

    def _depart(self, plan: RoundPlan, parts: Sequence[Part]) -> Departure:
        begin, reads = working(), self._can_read and bool(parts)
        drafted = self._drafting.propose(replace(plan, drafts=DraftPlan()) if reads else plan)
        self._proposing = begin, working()
        most = self._longest(plan)
        short = [_shortened(draft, most) for draft in drafted.proposals]
        self._drafted = replace(drafted, proposals=short)
        guesses = [draft.tokens for draft in self._drafted.proposals]
        if not reads:
            self._num_silent = 0 if any(guesses) else self._num_silent + 1
        if not any(guesses):
            return super()._depart(plan, parts)
        self._flight = None
        texts, asked = [span.request.tokens for span in plan.answering], list(map(len, guesses))
        return Departure(self._launch(plan.answering, texts, asked, parts, guesses=guesses))

    def _follow(self, flight: Flight, plan: RoundPlan, parts: Sequence[Part]) -> Flight | None:
        return super()._follow(flight, plan, parts) if self._flies_ahead(plan) else None

    def _take_off(self, plan: RoundPlan, decision: Decision, parts: Sequence[Part]) -> None:
        if self._flies_ahead(plan):
            super()._take_off(plan, decision, parts)
        else:
            self._state.feed(parts)

    def _note_results(
        self,
        flight: Flight,
        table: list[list[int]],
        plan: RoundPlan,
        results: dict[int, Landed],
    ) -> None:
        super()._note_results(flight, table, plan, results)
        for span in plan.answering:
            if (lane := flight.lane(span)) is not None:
                self._places[span.request.number] = flight, lane

    def _usual_lengths(self, plan: RoundPlan) -> list[int]:
        if self._num_silent or not plan.answering:
            return [0] * len(plan.answering)
        return [self._longest(plan)] * len(plan.answering)

    def _longest(self, plan: RoundPlan) -> int:
        """The longest draft that a round for these answers has room for."""
        return self._captures.lengths(self._captures.size(len(plan.answering)))[-1]

    def _flies_ahead(self, plan: RoundPlan) -> bool:
        return self._num_silent >= SILENT or not plan.drafts.asked

    def _decision(
        self,
        plan: RoundPlan,
        flight: Flight | None,
        results: dict[int, Landed],
        begin: float,
        end: float,
    ) -> Decision:
        made = super()._decision(plan, flight, results, begin, end)
        asked_at, answered_at = self._proposing
        if flight and flight.launched >= answered_at:  # the time of the drafter delays the round
            times = [asked_at, answered_at, end, end]
        else:
            times = [begin, begin, end, end]
        return replace(made, drafted=self._drafted, times=times)

    @inference
    def commit(self, plan: RoundPlan, decision: Decision, counts: Sequence[int]) -> None:
        """Store the new tokens, and tell the drafter about them."""
        super().commit(plan, decision, counts)
        if self._drafting.drafter is None:
            return
        outcomes = []
        for index, (span, count) in enumerate(zip(plan.answering, counts, strict=True)):
            if index in decision.waiting:
                outcomes.append(Outcome(span.row, 0, num_scored=0))
                continue
            path, draft = decision.paths[index], decision.drafts[index]
            tokens = decision.tokens(index)[:count]
            outcomes.append(
                Outcome(span.row, len(path), tokens, draft.in_guess(path), len(draft.tokens))
            )
        outcomes += [Outcome(span.row, 0, num_scored=0) for span in plan.reading]
        spans = [*plan.answering, *plan.reading]
        if self._drafting.layers:
            outcomes = [self._with_states(*pair) for pair in zip(outcomes, spans, strict=True)]
        self._drafting.observe(outcomes, [span.request for span in spans])
        self._places = {}

    def _with_states(self, outcome: Outcome, span: Span) -> Outcome:
        """The outcome, with the hidden states of the tokens that the target has processed."""
        state, row = self._state, span.row
        states = state.storage.watched[:0]
        if span.request.number in self._places:
            flight, lane = self._places[span.request.number]
            count = state.lengths[row] - flight.lengths[lane] + 1
            states = flight.round.states(flight.turn, lane, count)
        state.hear(row, states)
        return replace(outcome, states=state.kept[row], num_processed=state.lengths[row])


def _shortened(draft: Proposal, most: int) -> Proposal:
    """A draft cut to the length that a captured round has room for."""
    return worthwhile(draft, 1.0, [float(slot < most) for slot in range(len(draft.tokens))])


def drafts_beside(drafter: Any, rule: Rule) -> bool:
    """Whether captured rounds can judge a drafter's guesses: they are point masses, or the rule
    needs no draft probabilities."""
    if type(drafter) is Forced:
        return drafter.inner is None or drafts_beside(drafter.inner, rule)
    if type(drafter) is Mixed:
        return type(rule) is Match and all(drafts_beside(part, rule) for part in drafter.drafters)
    return type(drafter) in (NGram, Suffix) or (
        type(drafter) in (Heads, MTP, Block) and type(rule) is Match
    )
