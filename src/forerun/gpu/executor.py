"""Plans executed as captured rounds: for targets without a draft, or whose drafter is a model on
the same device.

While the host turns one round into text, the next is already running, for the same requests and
with the draft lengths of the last plan.  If a request has ended meanwhile, its lane was in vain and
nothing else: rows are overwritten past their length.  If one has come, it is given a round of its
own once, and joins the others in the next.  Requests that need the host (a processor, a grammar,
log-probabilities) are answered step by step, and the others do not wait for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from forerun.clock import now
from forerun.engine.drafting import Drafting
from forerun.engine.plan import RoundPlan, Span
from forerun.engine.proposal import NOTHING, Drafted, Proposal
from forerun.engine.stepwise import Decision, Stepwise
from forerun.gpu.device_drafter import DeviceDrafter
from forerun.gpu.flight import Flight
from forerun.gpu.forward import MOST_TOKENS, num_chunks
from forerun.gpu.inference import inference
from forerun.gpu.joining import (
    DRAFT_FAULT,
    CapturedLaws,
    Halves,
    fault_of,
    is_of_draft,
    needs_host,
    part_of,
)
from forerun.gpu.lanes import Lane, Lanes, cuts_law
from forerun.gpu.rounds import CapturedRound, RoundShape
from forerun.gpu.rows import GpuRows
from forerun.gpu.storage import Storage
from forerun.rules.base import Rule
from forerun.types import Drawn

LENGTHS = (0, 1, 2, 3, 4, 5, 6, 8, 12, 15)
"""Draft lengths that rounds are captured for."""
MARGIN = 2 * (LENGTHS[-1] + 1)
"""Slots past a text that two rounds may write to."""


class Captured:
    """Executes plans on the rows of one target.

    draft_temperature: of the drafter; None uses the request's.
    draft_context: the longest text that the drafter can read; None: any.
    """

    def __init__(
        self,
        target: Any,
        state: GpuRows,
        drafting: Drafting,
        rule: Rule,
        draft_temperature: float | None = None,
        draft_context: int | None = None,
    ) -> None:
        self._steps = Stepwise(target, state, drafting, rule)
        self._state = state
        self._rule = rule
        self._drafter = DeviceDrafter(drafting, draft_temperature, draft_context)
        self._flight: Flight | None = None
        self._halves: Halves | None = None
        self._last_result = 0.0
        self._next_asked: list[int] = []

    @property
    def device(self) -> Any:
        return self._state.storage.weights.head.device

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

    def _execute(self, plan: RoundPlan) -> Decision:
        return self._collect(plan, self._launch_missing(plan))

    def _collect(self, plan: RoundPlan, late: Flight | None) -> Decision:
        """Wait for the rounds of a plan, launch the next, and say what was decided."""
        flight, self._flight = self._flight, None
        rounds = [each for each in (flight, late) if each is not None]
        begin = max((self._last_result, *(each.launched for each in rounds[:1])))
        again = self._prepare_again(flight, plan) if flight and late is None else None
        results: dict[int, tuple[list[int], int]] = {}  # by number: its outcome, tokens asked for
        for each in rounds:
            each.wait()
            self._last_result = now()
            if again is not None:
                turn = again.launch()  # before anything else: the device has nothing to do
            table = each.table()
            self._note_results(each, table, plan, results)
            if again is not None:
                grown = [max(row[0], 0) + 1 for row in table]
                lengths = [sum(pair) for pair in zip(each.lengths, grown, strict=False)]
                self._flight = Flight(again, each.spans, lengths, self._next_asked, now(), turn)
        if self._answer_undrafted(plan, results):
            again = self._flight = None
        decision = self._decision(plan, results, begin, max(begin, self._last_result))
        if again is None:
            self._take_off(plan, decision)
        return decision

    def _prepare_again(self, flight: Flight, plan: RoundPlan) -> CapturedRound | None:
        """The next round for the same lanes, which stand on the device as the last one leaves them.

        None if other requests take part in it, if one of them may be over, or if more room is
        needed: then it is launched when the outcome of the last one is known."""
        if len(plan.answering) != len(flight.spans):
            return None
        shape = flight.round.shape
        longest = [length + shape.draft_length + 1 for length in flight.lengths]
        ends = [len(span.request.prompt) + span.request.limit for span in flight.spans]
        room = max(longest) + MARGIN
        order = {span.request.number: index for index, span in enumerate(plan.answering)}
        asked = self._drafter.asked(plan, [order[span.request.number] for span in flight.spans])
        length = self._draft_length(asked, shape.num_lanes, max(longest))
        may_end = any(most >= end for most, end in zip(longest, ends, strict=True))
        if may_end or num_chunks(room) != shape.num_chunks:
            return None
        if room > self._state.storage.capacity:
            return None
        made, drafts = flight.round, self._drafter.rows if length else None
        if drafts is not None and room > drafts.storage.capacity:
            return None
        if (length or not shape.draft_length) and not made.stands_on(storage_of(drafts)):
            return None  # keys have moved, or a drafter that paused may have fallen behind
        if length != shape.draft_length:
            shape = shape._replace(draft_length=length, draws=drafts is not None)
            made = self._round(shape, made.lanes, drafts)
        asked = [min(count, length) for count in asked]
        if asked != list(flight.asked):
            made.lanes.ask(asked)
        self._next_asked = asked
        made.prepare()
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
        drafts = self._drafter.rows if length else None
        for span, before, asked, row in zip(
            flight.spans, flight.lengths, flight.asked, table, strict=False
        ):
            if span.request.number in numbers:
                results[span.request.number] = row, asked
                if drafts is not None and drafts.storage is flight.round.draft:
                    drafts.lengths[span.row] = before + min(max(row[0], 0), length - 1)

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
        self, plan: RoundPlan, results: dict[int, tuple[list[int], int]], begin: float, end: float
    ) -> Decision:
        drawn = Drawn.SAMPLED if self._rule.needs_draft_probs else Drawn.SHARED
        proposals, paths, extra, faults = [], [], [], []
        for span in plan.answering:
            row, asked = results[span.request.number]
            room = span.request.limit - span.request.num_output - 1
            drafted = row[3 : 3 + min(asked, room)]
            proposals.append(Proposal(drafted, drawn) if drafted else NOTHING)
            paths.append(range(max(row[0], 0)))
            extra.append(row[1])
            faults.append(fault_of(span.request, row[2]))
        height = max((len(draft.tokens) for draft in proposals), default=0)
        middle = begin + (end - begin) * self._drafter.share(height, self._state.storage.weights)
        laws: Any = CapturedLaws(faults)
        was_asked = any(results[span.request.number][1] for span in plan.answering)
        drafted_all = Drafted(proposals, height if was_asked else None)
        return Decision(drafted_all, paths, extra, laws, [begin, middle, end, end])

    def _launch_missing(self, plan: RoundPlan) -> Flight | None:
        """Read what is new of each text, and launch a round for the requests that are in none.

        A round on its way that serves no request of the plan is let go.  Returns the round that was
        launched beside one that was on its way."""
        parts = [(span.row, span.start, span.tokens[:-1]) for span in plan.answering]
        parts += [(span.row, span.start, span.tokens) for span in plan.reading]
        self._state.feed([part for part in parts if part[2]])
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
        flight = self._launch(
            spans, texts, self._drafter.asked(plan, missing), is_late=bool(self._flight)
        )
        if self._flight is not None:
            return flight
        self._flight = flight
        return None

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
            self._flight = self._launch(
                spans, texts, self._drafter.asked(plan, going), is_late=False
            )

    def _launch(
        self,
        spans: Sequence[Span],
        texts: Sequence[Sequence[int]],
        asked: list[int],
        *,
        is_late: bool,
    ) -> Flight:
        """Launch a round for requests with these texts."""
        num_lanes = 1 << max(len(spans) - 1, 0).bit_length()
        length = self._draft_length(asked, num_lanes, max(map(len, texts)))
        asked = [min(count, length) for count in asked]
        longest = max(map(len, texts)) + MARGIN
        num_rows = max(span.row for span in spans) + 1
        self._state.make_room(num_rows, longest)
        drafts = self._drafter.rows if length else None
        if drafts is not None and not self._drafter.catch_up(drafts, spans, texts, longest):
            drafts, length, asked = None, 0, [0] * len(asked)
        lanes = self._lanes(num_lanes, is_late)
        shape = RoundShape(
            num_lanes,
            length,
            num_chunks(longest),
            self._rule.name,
            draws=drafts is not None,
            cuts=any(cuts_law(span.request.sampling) for span in spans),
        )
        made = self._round(shape, lanes, drafts)
        lanes.put([self._lane(*pair) for pair in zip(spans, texts, strict=True)], asked)
        turn = made.launch()
        return Flight(made, spans, list(map(len, texts)), asked, now(), turn)

    def _lane(self, span: Span, text: Sequence[int]) -> Lane:
        request = span.request
        output, temperature = len(text) - len(request.prompt), request.sampling.temperature
        drafting = self._drafter.temperature
        return Lane(
            row=span.row,
            previous=text[-2] if len(text) > 1 else 0,
            last=text[-1],
            stored=len(text) - 1,
            output=output,
            remaining=request.limit - output,
            seed=request.seed,
            temperature=temperature,
            draft_temperature=temperature if drafting is None else drafting,
            sampling=request.sampling,
        )

    def _round(self, shape: RoundShape, lanes: Lanes, drafts: GpuRows | None) -> CapturedRound:
        storage, other = self._state.storage, storage_of(drafts)
        made: CapturedRound | None = storage.rounds.get((shape, id(lanes)))
        if made is None or not made.stands_on(other):
            made = storage.rounds[shape, id(lanes)] = CapturedRound(shape, lanes, storage, other)
        return made

    def _lanes(self, num_lanes: int, is_late: bool) -> Lanes:
        kept = self._state.storage.lanes
        if (num_lanes, is_late) not in kept:
            kept[num_lanes, is_late] = Lanes(num_lanes, self._state.storage.weights.head.device)
        lanes: Lanes = kept[num_lanes, is_late]
        return lanes

    def _draft_length(self, asked: Sequence[int], num_lanes: int, longest: int) -> int:
        """The captured draft length that comes nearest to what is asked for; none where the
        longest text leaves the drafter's context."""
        most = min(max(asked, default=0), MOST_TOKENS // num_lanes - 1)
        if not self._drafter.can_read(longest + most):
            return 0
        return max(length for length in LENGTHS if length <= most)


def storage_of(rows: GpuRows | None) -> Storage | None:
    return None if rows is None else rows.storage
