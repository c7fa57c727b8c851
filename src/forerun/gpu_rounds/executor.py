"""Plans executed as captured rounds: for targets without a draft, or whose drafter is on the same
device.

While one round runs, the next is already queued, for the same requests and with the draft lengths
of the last plan.  If a request has ended meanwhile, its lane was in vain and
nothing else: rows are overwritten past their length.  If one has come, it is given a round of its
own once, and joins the others in the next.  Requests that need the host (a processor, a grammar,
log-probabilities) are answered step by step, and the others do not wait for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from forerun.base.clock import working
from forerun.engine.plan import RoundPlan, Span
from forerun.engine.proposal import Drafted
from forerun.engine.steering.ladder_policy import Ladder, Rungs
from forerun.engine.stepwise import Decision, Stepwise
from forerun.gpu.inference import inference
from forerun.gpu.rows import GpuRows
from forerun.gpu_rounds.captures import MARGIN, Captures, storage_of
from forerun.gpu_rounds.device_drafter import DeviceDrafter
from forerun.gpu_rounds.edits import edits_law
from forerun.gpu_rounds.flight import Flight
from forerun.gpu_rounds.joining import (
    DRAFT_FAULT,
    CapturedLaws,
    Halves,
    fault_of,
    is_of_draft,
    needs_host,
    part_of,
    proposal_of,
)
from forerun.gpu_rounds.lanes import cuts_law, lane_of
from forerun.gpu_rounds.rounds import CapturedRound, RoundShape
from forerun.rules.base import Rule
from forerun.rules.types import DraftLength, Drawn
from forerun.trees.tree import Tree


class Captured:
    """Executes plans on the rows of one target.

    drafter: what drafts, if anything does.
    draft_length: how far to draft, where that is given.
    tree: that all drafts fill, in level order; None: drafts are chains.
    """

    def __init__(
        self,
        target: Any,
        state: GpuRows,
        drafter: DeviceDrafter,
        rule: Rule,
        draft_length: DraftLength,
        tree: Tree | None = None,
    ) -> None:
        self._steps = Stepwise(target, state, drafter.drafting, rule)
        self._state = state
        self._rule = rule
        self._drafter = drafter
        self._captures = Captures(
            state, len(state.lengths), draft_length, is_on_host=drafter.is_on_host, tree=tree
        )
        self._flight: Flight | None = None
        self._halves: Halves | None = None
        self._last_result = 0.0
        self._next_asked: list[int] = []

    @property
    def device(self) -> Any:
        return self._state.storage.weights.head.device

    @property
    def ladder(self) -> Ladder | None:
        """The draft lengths of rounds by the number of requests."""
        return self._rungs

    def _rungs(self, num_requests: int) -> Rungs:
        size = self._captures.size(num_requests)
        lengths = self._captures.lengths(size)
        shares = [self._drafter.share(length, self._state.storage) for length in lengths]
        return Rungs(size, lengths, [1 / (1 - share) for share in shares])

    @inference
    def execute(self, plan: RoundPlan) -> Decision:
        """Draft, score and decide; nothing is kept until `commit`."""
        self._drafter.free(plan.spans)
        is_host = needs_host(plan)
        if not any(is_host):
            self._halves = None
            return self._execute(plan)
        device = [index for index, on_host in enumerate(is_host) if not on_host]
        host = [index for index, on_host in enumerate(is_host) if on_host]
        halves = Halves(
            (part_of(plan, device, plan.reading), device), (part_of(plan, host, ()), host)
        )
        self._halves = halves
        late = self._launch_missing(halves.plans[0])  # runs while the host answers the others
        by_host = self._steps.execute(halves.plans[1])
        return halves.joined(self._collect(halves.plans[0], late), by_host)

    @inference
    def commit(self, plan: RoundPlan, decision: Decision, counts: Sequence[int]) -> None:
        """Keep what became text: counts[i] tokens of the i-th answer."""
        if self._halves is not None:
            (plan, _), (by_host, indices) = self._halves.first, self._halves.second
            self._steps.commit(by_host, self._halves.decisions[1], [counts[i] for i in indices])
        for span in plan.answering:  # requests hold their new texts by now
            self._state.lengths[span.row] = max(span.start, len(span.request.tokens) - 1)
        for span in plan.reading:
            self._state.lengths[span.row] = span.end
        if self._drafter.hears:
            for span in plan.spans:
                self._state.put_aside(span.row, is_answered=span.answers)

    def _execute(self, plan: RoundPlan) -> Decision:
        return self._collect(plan, self._launch_missing(plan))

    def _collect(self, plan: RoundPlan, late: Flight | None) -> Decision:
        """Wait for the rounds of a plan, launch the next, and say what was decided."""
        flight, self._flight = self._flight, None
        rounds = [each for each in (flight, late) if each is not None]
        begin = max((self._last_result, *(each.launched for each in rounds[:1])))
        before = self._captures.seconds
        again = self._prepare_again(flight, plan) if flight and late is None else None
        turn = again.launch() if again is not None else 0  # now: the device must not wait for it
        results: dict[int, tuple[list[int], int]] = {}  # by number: its outcome, tokens asked for
        for each in rounds:
            each.wait()
            self._last_result = working()
            table = each.table()
            self._note_results(each, table, plan, results)
            if again is not None:
                grown = [max(row[0], 0) + 1 for row in table]
                lengths = [sum(pair) for pair in zip(each.lengths, grown, strict=False)]
                self._flight = Flight(
                    again, each.spans, lengths, self._next_asked, plan.drafts.is_trial,
                    self._last_result, turn,
                )  # fmt: skip
        is_timed = self._captures.seconds == before
        if self._answer_undrafted(plan, results):
            again = self._flight = None
        decision = self._decision(plan, rounds, results, begin, max(begin, self._last_result))
        if again is None:
            self._take_off(plan, decision)
        return replace(decision, is_overlapped=self._flight is not None, is_timed=is_timed)

    def _prepare_again(self, flight: Flight, plan: RoundPlan) -> CapturedRound | None:
        """The next round for the same lanes, which stand on the device as the last one leaves them.

        None if fewer lanes would do, if all requests may be over, or if more room is needed: then
        it is launched when the outcome of the last one is known."""
        shape, captures = flight.round.shape, self._captures
        if captures.size(len(plan.answering)) != shape.num_lanes:
            return None
        order = {span.request.number: index for index, span in enumerate(plan.answering)}
        living = [span.request.number in order for span in flight.spans]
        longest = [
            length + shape.draft_length + 1
            for length, lives in zip(flight.lengths, living, strict=True)
            if lives
        ]
        spans = [span for span, lives in zip(flight.spans, living, strict=True) if lives]
        ends = [len(span.request.prompt) + span.request.limit for span in spans]
        room = max(longest) + MARGIN
        asked = self._drafter.asked(plan, [order[span.request.number] for span in spans])
        length = self._draft_length(asked, shape.num_lanes, max(longest))
        may_end = all(most >= end for most, end in zip(longest, ends, strict=True))
        if may_end or captures.num_chunks(room) != shape.num_chunks:
            return None
        if room > self._state.storage.capacity:
            return None
        made, drafts = flight.round, self._drafter.rows_in(length)
        if drafts is not None and room > drafts.storage.capacity:
            return None
        if (length or not shape.draft_length) and not made.stands_on(storage_of(drafts)):
            return None  # keys have moved, or a drafter that paused may have fallen behind
        if length != shape.draft_length:
            shape = shape._replace(draft_length=length, draws=drafts is not None)
            made = captures.round(shape, made.lanes, drafts)
        counts = iter(asked)
        asked = [min(next(counts), length) if lives else 0 for lives in living]
        if asked != list(flight.asked):
            made.lanes.ask(asked)
        if not all(living):
            made.lanes.leave([lane for lane, lives in enumerate(living) if not lives])
        self._next_asked = asked
        return made

    def _note_results(
        self,
        flight: Flight,
        table: list[list[int]],
        plan: RoundPlan,
        results: dict[int, tuple[list[int], int]],
    ) -> None:
        """Sort outcomes by request, and note how much of each text the drafter stores by now."""
        numbers = {span.request.number for span in plan.answering}
        length = flight.round.shape.draft_length
        drafts = self._drafter.rows_in(length)
        for span, before, asked, row in zip(
            flight.spans, flight.lengths, flight.asked, table, strict=False
        ):
            if span.request.number in numbers:
                results[span.request.number] = row, asked
                if drafts is not None and drafts.storage is flight.round.draft:
                    self._drafter.note(span.row, before, max(row[0], 0), length)

    def _answer_undrafted(self, plan: RoundPlan, results: dict[int, tuple[list[int], int]]) -> bool:
        """Requests whose draft had no law go on without a drafter, from this round on; whether
        there are any."""
        spans = [span for span in plan.answering if is_of_draft(results[span.request.number][0][2])]
        if spans:
            self._drafter.drafting.give_up(DRAFT_FAULT, {span.row: span.request for span in spans})
            texts = [span.request.tokens for span in spans]
            flight = self._launch(spans, texts, [0] * len(spans), is_late=True)
            flight.wait()
            self._note_results(flight, flight.table(), plan, results)
        return bool(spans)

    def _decision(
        self,
        plan: RoundPlan,
        rounds: Sequence[Flight],
        results: dict[int, tuple[list[int], int]],
        begin: float,
        end: float,
    ) -> Decision:
        drawn = Drawn.SAMPLED if self._rule.needs_draft_probs else Drawn.SHARED
        proposals, paths, extra, faults = [], [], [], []
        for span in plan.answering:
            row, asked = results[span.request.number]
            room = span.request.limit - span.request.num_output - 1
            proposal = proposal_of(self._captures.tree, row[4:], min(asked, room), drawn)
            proposals.append(proposal)
            paths.append(proposal.path(row[3] - 1) if row[0] > 0 else ())
            extra.append(row[1])
            faults.append(fault_of(span.request, row[2]))
        height = max((flight.round.shape.draft_length for flight in rounds), default=0)
        middle = begin + (end - begin) * self._drafter.share(height, self._state.storage)
        laws: Any = CapturedLaws(faults)
        is_trial = any(flight.is_trial for flight in rounds)
        drafted_all = Drafted(proposals, height or None, is_trial)
        return Decision(drafted_all, paths, extra, laws, [begin, middle, end, end])

    def _launch_missing(self, plan: RoundPlan) -> Flight | None:
        """Read what is new of each text, and launch a round for the requests that are in none.

        A round on its way that serves no request of the plan is let go.  Returns the round that was
        launched beside one that was on its way."""
        self._read(plan)
        flying = {} if self._flight is None else self._flight.places
        missing = [
            index
            for index, span in enumerate(plan.answering)
            if (span.request.number, len(span.request.tokens)) not in flying
        ]
        if len(missing) == len(plan.answering):
            self._flight = None
        if not missing:
            return None
        spans = [plan.answering[index] for index in missing]
        texts = [span.request.tokens for span in spans]
        if self._flight is not None:
            return self._launch(spans, texts, [0] * len(spans), is_late=True)
        asked = self._drafter.asked(plan, missing)
        self._flight = self._launch(spans, texts, asked, is_trial=plan.drafts.is_trial)
        return None

    def _read(self, plan: RoundPlan) -> None:
        """Store what is new of each text, but for the last token of those that are answered."""
        parts = [(span.row, span.start, span.tokens[:-1]) for span in plan.answering]
        parts += [(span.row, span.start, span.tokens) for span in plan.reading]
        self._state.feed([part for part in parts if part[2]])

    def _take_off(self, plan: RoundPlan, decision: Decision) -> None:
        """Launch the next round for the requests of a plan that may go on."""
        going, texts = [], []
        for index, span in enumerate(plan.answering):
            request, tokens = span.request, decision.tokens(index)
            is_over = request.num_output + len(tokens) >= request.limit
            has_fault = decision.laws.settle(index, ())[1] is not None
            if not is_over and not has_fault and not set(tokens) & set(request.endings):
                going.append(index)
                texts.append([*request.tokens, *tokens])
        if going:
            spans = [plan.answering[index] for index in going]
            asked = self._drafter.asked(plan, going)
            self._flight = self._launch(spans, texts, asked, is_trial=plan.drafts.is_trial)

    def _launch(
        self,
        spans: Sequence[Span],
        texts: Sequence[Sequence[int]],
        asked: list[int],
        *,
        is_late: bool = False,
        is_trial: bool = False,
        guesses: Sequence[Sequence[int]] = (),
    ) -> Flight:
        """Launch a round for requests with these texts; late: beside one that is on its way.

        guesses: of a drafter on the host.
        """
        begin, captures, before = working(), self._captures, self._captures.seconds
        longest = max(map(len, texts)) + MARGIN
        num_lanes = captures.size(len(spans))
        length = self._draft_length(asked, num_lanes, max(map(len, texts)))
        num_rows = max(span.row for span in spans) + 1
        self._state.make_room(num_rows, longest)
        drafts = self._drafter.catch_up(spans, texts, length, longest)
        if drafts is None and not self._drafter.is_on_host:
            length = 0
        followed = zip(asked, map(self._drafter.can_follow, texts), strict=True)
        asked = [min(count, length) if can_follow else 0 for count, can_follow in followed]
        shape = RoundShape(
            num_lanes,
            length,
            captures.num_chunks(longest),
            self._rule.name,
            draws=drafts is not None,
            cuts=any(cuts_law(span.request.sampling) for span in spans),
            edits=any(edits_law(span.request) for span in spans),
            layers=self._state.layers,
            tree=captures.tree,
        )
        captures.warm_up(shape, drafts)
        lanes = captures.lanes(num_lanes, is_late)
        made = captures.round(shape, lanes, drafts)
        heat = self._drafter.temperature
        lanes.put([lane_of(*pair, heat) for pair in zip(spans, texts, strict=True)], asked)
        if lanes.edits is not None:
            lanes.edits.put([span.request for span in spans], texts)
        if guesses:
            made.guess(guesses)
        turn = made.launch()
        launched = begin + captures.seconds - before
        return Flight(made, spans, list(map(len, texts)), asked, is_trial, launched, turn)

    def _draft_length(self, asked: Sequence[int], num_lanes: int, longest: int) -> int:
        """The captured draft length for what is asked; none where the longest text leaves the
        drafter's context."""
        length = self._captures.length(num_lanes, asked)
        return length if self._drafter.can_read(longest + length) else 0
