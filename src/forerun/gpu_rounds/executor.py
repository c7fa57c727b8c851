"""Plans executed as captured rounds: for targets without a draft, or whose drafter is on the same
device.

While one round runs, the next is already queued, for the same requests and with the draft lengths
of the last plan. If a request has ended meanwhile, only the work for its lane was wasted, because
data past a row's length is overwritten. Parts of prompts are read by the next round, in the same
pass as its lanes. A request whose prompt ends there already has a lane in that round, so its first
token comes one plan later. A round that reads prompts has no drafts: such rounds come in fewer
shapes, and a pass has room for more of a prompt. If grammars restrict requests, the decision of a
round is launched only when the results of the round before it are known, with masks made from
these. Lanes of requests that need the host (a processor, some log-probabilities) are scored with
the others. The host decides these from their logits while the next round runs, in which they go on
with the tokens that the device would choose. If the host chooses others, that work was wasted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from forerun.base.clock import working
from forerun.engine.plan import RoundPlan, Span
from forerun.engine.proposal import Drafted
from forerun.engine.steering.ladder_policy import Ladder, Rungs
from forerun.engine.stepwise import Decision, Stepwise
from forerun.gpu.inference import inference
from forerun.gpu.rows import GpuRows
from forerun.gpu_rounds.blocks import Part, block_size, count, fitting
from forerun.gpu_rounds.captures import MARGIN, Captures
from forerun.gpu_rounds.device_drafter import DeviceDrafter
from forerun.gpu_rounds.edits import fits_device
from forerun.gpu_rounds.flight import NOT_LANDED, Departure, Flight, Landed, proposal_of
from forerun.gpu_rounds.lanes import lane_of
from forerun.gpu_rounds.needs import Needs
from forerun.gpu_rounds.outcomes import (
    DRAFT_FAULT,
    Answer,
    CapturedLaws,
    answers_of,
    is_of_draft,
)
from forerun.gpu_rounds.rounds import RoundShape
from forerun.rules.base import Rule
from forerun.rules.match import Match
from forerun.rules.types import DraftLength, Drawn
from forerun.trees.tree import Tree

FEW_TOKENS = 448
"""If all answers of the first round are new, it reads at most this many prompt tokens."""


class Captured:
    """Executes plans on the rows of one target with captured rounds.

    drafter: the drafter on the device, if any.
    draft_length: how far to draft, if that is fixed.
    tree: the tree that all drafts fill, in level order; None: drafts are chains.
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
        self._flight: Flight | None = None  # launched ahead, for the next plan
        # The host knows no law of a draft made on the device, and moves no keys of a tree's path.
        self._drafts_for_host = tree is None and (type(rule) is Match or drafter.is_on_host)
        self._unlike: list[int] = []  # rows for which the host has just disagreed with the device
        self._needs = Needs()  # of all requests so far; rounds that read prompts serve them all
        # A drafter on the host gets no hidden states of prompts that rounds read.
        self._can_read = not (drafter.is_on_host and state.layers)
        self._begun = self._last_result = 0.0
        self._captured_before = 0.0  # seconds of captures before this plan

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
        """Draft, score and decide. Nothing is stored until `commit`."""
        self._begun, self._captured_before = working(), self._captures.seconds
        left = [arguments[0] for verb, arguments in plan.changes if verb == "leave"]
        self._drafter.free(left)
        if self._flight is not None:
            self._flight.leave(left)
        return self._collect(plan, self._depart(plan, self._parts(plan)))

    @inference
    def commit(self, plan: RoundPlan, decision: Decision, counts: Sequence[int]) -> None:
        """Store counts[i] new tokens of the i-th answer."""
        for span in plan.answering:  # requests hold their new texts by now
            self._state.lengths[span.row] = max(span.start, len(span.request.tokens) - 1)
        for span in plan.reading:
            self._state.lengths[span.row] = span.end
        ended = [span.row for span in plan.answering if span.request.finish_reason is not None]
        self._drafter.free(ended)  # now, because the next plan may be a long time off

    def _depart(self, plan: RoundPlan, parts: Sequence[Part]) -> Departure:
        """Launch the next round after the running one. If the running round serves nobody in the
        plan, it is abandoned and two rounds are launched."""
        flight, self._flight = self._flight, None
        if flight is None or all(flight.lane(span) is None for span in plan.answering):
            flight, parts = self._start(plan, parts), []
        if flight is None:
            return Departure(None)
        if not flight.is_decided:
            outputs = {
                lane: span.request.output
                for span in plan.answering
                if (lane := flight.lane(span)) is not None
            }
            flight.decide(outputs)
        following = self._follow(flight, plan, parts)
        return Departure(flight, following, parts if following is None else ())

    def _parts(self, plan: RoundPlan) -> list[Part]:
        """The tokens of each text that must still be read, except the last token of texts that are
        answered."""
        parts = [(span.row, span.start, span.tokens[:-1]) for span in plan.answering]
        parts += [(span.row, span.start, span.tokens) for span in plan.reading]
        return [part for part in parts if part[2]]

    def _start(self, plan: RoundPlan, parts: Sequence[Part]) -> Flight | None:
        """Launch a round for all requests of a plan. If all of them are new, the parts of prompts
        that are too long for it are read first, in the widest passes."""
        if not plan.answering:
            self._state.feed(parts)
            if self.device.type == "cuda":
                torch.cuda.current_stream(self.device).synchronize()  # so that the time is theirs
            return None
        num_before = 0
        is_long = count(parts) > FEW_TOKENS and all(span.is_new for span in plan.answering)
        if is_long or self._drafter.hears:  # which reads the states of a prompt
            self._state.feed(parts)
            num_before, parts = count(parts), ()
        texts = [span.request.tokens for span in plan.answering]
        asked = self._drafter.asked(plan, range(len(texts)))
        is_trial = plan.drafts.is_trial
        flight = self._launch(plan.answering, texts, asked, parts=parts, is_trial=is_trial)
        flight.num_read += num_before
        flight.launched = self._begun + self._captures.seconds - self._captured_before
        return flight

    def _collect(self, plan: RoundPlan, departure: Departure) -> Decision:
        """Wait for the round of a plan; returns its decision."""
        flight, following = departure.flight, departure.next
        results: dict[int, Landed] = {}  # by the number of a request
        begin = self._begun
        if flight is not None:
            begin = max(self._last_result, flight.launched)
            flight.wait()
            self._last_result = working()
            table = flight.table()
            self._note_results(flight, table, plan, results)
            if following is not None:
                following.move_on(table)
            if self._answer_undrafted(plan, results):
                following = None
        end = max(begin, self._last_result) if flight is not None else working()
        is_timed = self._captures.seconds == self._captured_before
        decision = self._decision(plan, flight, results, begin, end)
        if following is not None:
            following.leave(self._unlike)
        self._flight = following
        if following is None:
            self._take_off(plan, decision, departure.parts)
        usual = self._usual_lengths(plan)
        return replace(
            decision, is_overlapped=self._flight is not None, is_timed=is_timed,
            room=self._room(usual), costs_drafts=self._can_read and any(usual),
        )  # fmt: skip

    def _usual_lengths(self, plan: RoundPlan) -> list[int]:
        """The draft lengths that these answers have in a round that reads no prompts."""
        return self._drafter.asked(plan, range(len(plan.answering)))

    def _room(self, usual: Sequence[int]) -> int | None:
        """How many prompt tokens the next round can read beside answers with these draft lengths;
        None: any number."""
        if not (self._can_read and usual):
            return None
        return self._captures.room(self._captures.size(len(usual)), usual)

    def _follow(self, flight: Flight, plan: RoundPlan, parts: Sequence[Part]) -> Flight | None:
        """Launch the next round in the same lanes, which continue on the device where the last
        round leaves them. New requests take free lanes. Requests that the host decides go on as if
        it will agree with the device. If they have drafts they leave their lanes, since the keys of
        tokens that only the host accepts would be overwritten.

        Returns None if another number of lanes is needed, if all requests may be over, or if the
        host decides all lanes and has just disagreed with the device. Then the next round is
        launched when the results of the last one are known.
        """
        lanes = [flight.lane(span) for span in plan.answering]
        if self._unlike and all(lane in flight.by_host for lane in lanes):
            return None
        indices = [
            index
            for index, lane in enumerate(lanes)
            if lane is None or not flight.by_host.get(lane)
        ]
        shape, spans = flight.round.shape, [plan.answering[index] for index in indices]
        most = flight.longest(spans)
        ends = [len(span.request.prompt) + span.request.limit for span in spans]
        may_end = all(length >= end for length, end in zip(most, ends, strict=True))
        if may_end or self._captures.size(len(plan.answering)) != shape.num_lanes:
            return None
        asked = self._drafter.asked(plan, indices)
        texts = [span.request.tokens for span in spans]
        is_trial = plan.drafts.is_trial
        return self._launch(spans, texts, asked, parts, behind=flight, is_trial=is_trial)

    def _note_results(
        self,
        flight: Flight,
        table: list[list[int]],
        plan: RoundPlan,
        results: dict[int, Landed],
    ) -> None:
        """Store the results of a round by request."""
        for span in plan.answering:
            lane = flight.lane(span)
            if lane is not None:
                results[span.request.number] = Landed(flight, lane, table[lane])

    def _answer_undrafted(self, plan: RoundPlan, results: dict[int, Landed]) -> bool:
        """Score again, without drafts, the requests whose draft probabilities were invalid, and
        stop drafting for them. Returns whether there were any."""
        spans = [
            span
            for span in plan.answering
            if is_of_draft(results.get(span.request.number, NOT_LANDED).row[2])
        ]
        if spans:
            self._drafter.drafting.give_up(DRAFT_FAULT, {span.row: span.request for span in spans})
            flight = self._launch(spans, [span.request.tokens for span in spans], [0] * len(spans))
            flight.wait()
            self._note_results(flight, flight.table(), plan, results)
        return bool(spans)

    def _decision(
        self,
        plan: RoundPlan,
        flight: Flight | None,
        results: dict[int, Landed],
        begin: float,
        end: float,
    ) -> Decision:
        drawn = Drawn.SAMPLED if self._rule.needs_draft_probs else Drawn.SHARED
        spans = plan.answering
        landed = [results.get(span.request.number, NOT_LANDED) for span in spans]
        missing = [index for index, one in enumerate(landed) if one is NOT_LANDED]
        proposals = []
        for span, one in zip(spans, landed, strict=True):
            asked = min(one.asked, span.request.limit - span.request.num_output - 1)
            proposals.append(proposal_of(self._captures.tree, one.row[4:], asked, drawn))
        answers = answers_of(self._steps, spans, proposals, landed)
        self._unlike = []
        for span, one, answer in zip(spans, landed, answers, strict=True):
            self._note_stored(span.row, one, answer)
            if not one.is_as(answer.path, answer.extra):
                self._unlike.append(span.row)
        height = 0 if flight is None else flight.round.shape.draft_length
        middle = begin + (end - begin) * self._drafter.share(height, self._state.storage)
        paths, extra = [answer.path for answer in answers], [answer.extra for answer in answers]
        laws: Any = CapturedLaws(answers)
        drafted = Drafted(proposals, height or None, flight is not None and flight.is_trial)
        load = None if flight is None else flight.load
        times = [begin, middle, end, end]
        return Decision(drafted, paths, extra, laws, times, load=load, waiting=frozenset(missing))

    def _note_stored(self, row: int, landed: Landed, answer: Answer) -> None:
        """Record how much of a text the drafter stores after a round: what the device decided, as
        far as the host (if it decides) agrees."""
        flight, lane = landed.flight, landed.lane
        if flight is None or not flight.follows[lane]:
            return
        num_accepted = max(landed.row[0], 0)
        if landed.is_by_host:  # the token after them may be another
            num_accepted = min(num_accepted, len(answer.path)) - 1
        length = flight.round.shape.draft_length
        self._drafter.note(row, flight.lengths[lane], num_accepted, length)

    def _take_off(self, plan: RoundPlan, decision: Decision, parts: Sequence[Part]) -> None:
        """Launch the next round, for the requests of a plan that may continue and for waiting
        ones."""
        going, texts = [], []
        for index, span in enumerate(plan.answering):
            request = span.request
            tokens = [] if index in decision.waiting else decision.tokens(index)
            is_over = request.num_output + len(tokens) >= request.limit
            has_fault = decision.laws.settle(index, ())[1] is not None
            if not is_over and not has_fault and not set(tokens) & set(request.endings):
                going.append(index)
                texts.append([*request.tokens, *tokens])
        if going:
            spans = [plan.answering[index] for index in going]
            asked = self._drafter.asked(plan, going)
            is_trial = plan.drafts.is_trial
            self._flight = self._launch(spans, texts, asked, parts, is_trial=is_trial)
        else:
            self._state.feed(parts)

    def _launch(
        self,
        spans: Sequence[Span],
        texts: Sequence[Sequence[int]],
        asked: Sequence[int],
        parts: Sequence[Part] = (),
        *,
        behind: Flight | None = None,
        is_trial: bool = False,
        guesses: Sequence[Sequence[int]] = (),
    ) -> Flight:
        """Launch a round for requests with these texts, and for parts of prompts.

        behind: the running round, which extends the texts of the requests in it.
        guesses: those of a drafter on the host.
        """
        begin, captures, before = working(), self._captures, self._captures.seconds
        if behind is None:
            num_lanes, order = captures.size(len(spans)), list(range(len(spans)))
            most, moves = list(map(len, texts)), [False] * len(spans)
        else:
            num_lanes, order = behind.round.shape.num_lanes, behind.places(spans)
            most, moves = behind.longest(spans), [behind.lane(span) is not None for span in spans]
        size = block_size(count(parts), num_lanes) if self._can_read else 0
        length = 0 if size else self._draft_length(asked, num_lanes, max(most))
        inside, outside = fitting(parts, size)
        self._state.feed(outside)
        firsts = {row: first for row, first, _ in inside}
        able, more = [], []  # to guess; tokens that come to texts of which it has to read more
        for span, text, lane, is_moved in zip(spans, texts, order, moves, strict=True):
            goes_on = behind is not None and is_moved and behind.follows[lane]
            end = len(text) + is_moved
            stored = firsts.get(span.row, end - 1)
            able.append(goes_on or self._drafter.can_follow(end, stored))
            more.append(int(is_moved) if able[-1] and not goes_on else None)
        drafts = self._drafter.catch_up(spans, texts, more, most, length)
        crowded = self._drafter.crowded
        able = [can and span.row not in crowded for can, span in zip(able, spans, strict=True)]
        if drafts is None and not self._drafter.is_on_host:
            length, able = 0, [False] * len(spans)
        on_device = [fits_device(span.request) for span in spans]
        asked = [
            min(count, length) if can and (fits or self._drafts_for_host) else 0
            for count, can, fits in zip(asked, able, on_device, strict=True)
        ]
        by_host = {
            lane: count
            for lane, count, fits in zip(order, asked, on_device, strict=True)
            if not fits
        }
        needs = Needs.of(
            [span.request for span, fits in zip(spans, on_device, strict=True) if fits]
        )
        self._needs = needs.joined(self._needs)
        shape = RoundShape(
            num_lanes, length, 1 if size else captures.num_chunks(MARGIN + max(most)),
            self._rule.name, drafts is not None, *(self._needs if size else needs),
            layers=self._state.layers, tree=captures.tree, block=size,
        )  # fmt: skip
        for span, end in zip(spans, most, strict=True):
            self._state.reserve(span.row, self._state.lengths[span.row], end + shape.num_nodes)
        for row, at, part in inside:
            self._state.reserve(row, at, at + len(part))
        captures.warm_up(shape, drafts)
        made = captures.round(shape, drafts, goes_on=behind is not None)
        places = dict(zip(order, zip(spans, texts, asked, able, strict=True), strict=True))
        nobody: tuple[Any, ...] = (None, (), 0, False)
        by_lane = [places.get(lane, nobody) for lane in range(num_lanes)]
        all_spans, all_texts, all_asked, follows = (
            list(part) for part in zip(*by_lane, strict=True)
        )
        new = [lane for lane, is_moved in zip(order, moves, strict=True) if not is_moved]
        lengths, num_read = list(map(len, all_texts)), size + count(outside)
        flight = Flight(
            made, all_spans, lengths, all_asked, follows, frozenset(new), is_trial, num_read,
            by_host,
        )  # fmt: skip
        self._board(flight, {lane: all_texts[lane] for lane in new}, behind)
        made.read(inside)
        if guesses:
            made.guess(guesses)
        flight.turn = made.launch()
        if behind is None or not flight.masked:  # else when the outcome of that one is known
            pairs = zip(order, spans, texts, strict=True)
            flight.decide({lane: text[len(span.request.prompt) :] for lane, span, text in pairs})
        flight.launched = begin + captures.seconds - before
        return flight

    def _board(
        self, flight: Flight, texts: Mapping[int, Sequence[int]], behind: Flight | None
    ) -> None:
        """Set the lanes to these texts. After another round, the others stay or become free."""
        lanes, heat = flight.round.lanes, self._drafter.temperature
        spans = {lane: span for lane in texts if (span := flight.spans[lane]) is not None}
        made = [lane_of(span, texts[lane], heat) for lane, span in spans.items()]
        asked = [flight.asked[lane] for lane in spans]
        places: list[int] | None = list(spans)
        if behind is None:
            lanes.put(made, asked)
            places = None
        else:
            left = [
                lane for lane, span in enumerate(behind.spans) if span and not flight.spans[lane]
            ]
            if left:
                lanes.leave(left)
            if flight.asked != behind.asked:
                lanes.ask(flight.asked)
            if made:
                lanes.join(list(spans), made, asked)
        if lanes.edits is not None and made:
            requests = [
                None if lane in flight.by_host else span.request for lane, span in spans.items()
            ]
            lanes.edits.put(requests, list(texts.values()), places)

    def _draft_length(self, asked: Sequence[int], num_lanes: int, longest: int) -> int:
        """The captured draft length for these requested lengths; 0 if the longest text exceeds the
        drafter's context."""
        length = self._captures.length(num_lanes, asked)
        return length if self._drafter.can_read(longest + length) else 0
