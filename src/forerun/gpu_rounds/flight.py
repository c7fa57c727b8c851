"""Captured rounds that were launched and whose results are not all known yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from forerun.engine.plan import Load, Span
from forerun.engine.proposal import NOTHING, Proposal
from forerun.engine.request import Report, Request
from forerun.gpu_rounds.blocks import Part
from forerun.gpu_rounds.masks import has_mask, masks_of
from forerun.gpu_rounds.rounds import CapturedRound
from forerun.gpu_rounds.turns import Turn
from forerun.grammars.base import Words
from forerun.rules.types import Drawn
from forerun.trees.tree import Tree


def proposal_of(tree: Tree | None, tokens: Sequence[int], height: int, drawn: Drawn) -> Proposal:
    """The draft of a lane, cut to what was judged. tree: its whole shape; None for a chain."""
    if tree is None or not height:
        return Proposal(list(tokens[:height]), drawn) if height else NOTHING
    count = sum(depth < height for depth in tree.depths)
    return Proposal(list(tokens[:count]), drawn, tree=tree.first(count))


class Landed(NamedTuple):
    """The results of one lane of a round."""

    flight: Flight | None
    lane: int
    row: Sequence[
        int
    ]  # accepted tokens, the extra one, the fault, the row that it follows, the draft

    @property
    def asked(self) -> int:
        """The number of draft tokens that were judged."""
        return 0 if self.flight is None else self.flight.asked[self.lane]

    @property
    def is_by_host(self) -> bool:
        """Whether the host decides the lane."""
        return self.flight is not None and self.lane in self.flight.by_host

    def is_as(self, path: Sequence[int], extra: int) -> bool:
        """Whether the device accepted as many tokens as are in `path`, and chose `extra` after
        them."""
        return len(path) == max(self.row[0], 0) and extra == self.row[1]

    @property
    def mask_faults(self) -> Mapping[int, BaseException]:
        """The exceptions that the grammar raised, by slot."""
        return {} if self.flight is None else self.flight.mask_faults.get(self.lane, {})

    @property
    def logits(self) -> Any:
        """The logits (N, V) after the text and after each token of the draft, for a lane that the
        host decides."""
        assert self.flight is not None
        return self.flight.turn.logits(self.lane)

    def reports(self, path: Sequence[int]) -> list[Report]:
        """The log-probabilities of an accepted path and of the token after it, if the round
        computed them."""
        flight = self.flight
        return [] if flight is None else flight.round.reports(flight.turn, self.lane, path)


NOT_LANDED = Landed(None, 0, (0, 0, 0, 0))
"""Stands for the result of a request that has no lane in this round, only in the next one."""


@dataclass
class Flight:
    """A launched round, with the requests that it serves, by lane; a lane without a span is
    unused."""

    round: CapturedRound
    spans: Sequence[Span | None]
    lengths: list[int]  # of the texts before it, known when the round before it is over
    asked: Sequence[int]  # tokens to draft
    follows: Sequence[bool]  # the drafter has read all of the text, and reads what is added
    new: frozenset[int]  # lanes that the round before it had not
    is_trial: bool  # its drafts do not seem to pay
    num_read: int  # prompt tokens read in it, and in passes just before it
    by_host: Mapping[int, int]  # lanes that the host decides, and how many tokens each drafts
    launched: float = 0.0  # when
    turn: Turn = field(init=False)  # its results
    is_decided: bool = False  # the decision is launched, too
    mask_faults: dict[int, dict[int, BaseException]] = field(default_factory=dict)
    """The exceptions raised by grammars, by lane and slot."""

    def decide(self, outputs: Mapping[int, Sequence[int]]) -> None:
        """Launch the decision of the round, with the masks of grammars.

        outputs: the outputs of the requests, by lane; requests in other lanes have ended.
        """
        masks: dict[int, Words] = {}
        there = [pair for pair in self.masked.items() if pair[0] in outputs]
        drafts = self.turn.drafts() if there else []
        shape, vocab = self.round.shape, self.round.vocab_size
        for lane, request in there:
            tokens = drafts[lane] if drafts else ()
            draft = proposal_of(shape.tree, tokens, self.asked[lane], Drawn.SHARED)
            found, self.mask_faults[lane] = masks_of(request, outputs[lane], draft, vocab)
            masks |= {lane * (shape.num_nodes + 1) + slot: mask for slot, mask in found.items()}
        self.round.decide(self.turn, self.by_host, masks)
        self.is_decided = True

    @cached_property
    def masked(self) -> dict[int, Request]:
        """The requests, by lane, whose grammar is applied on the device."""
        return {
            lane: span.request
            for lane, span in enumerate(self.spans)
            if span is not None and lane not in self.by_host and has_mask(span.request)
        }

    def wait(self) -> None:
        """Wait until the round is over."""
        self.turn.wait()

    def table(self) -> list[list[int]]:
        """The results by lane: the number of accepted tokens (-1: unused), the extra token, the
        fault, the row where the path ends, and the draft."""
        return self.turn.table()

    @property
    def load(self) -> Load:
        """The work of the round."""
        num_answered = sum(span is not None and not span.is_new for span in self.spans)
        return Load(num_answered, self.num_read)

    @cached_property
    def _places(self) -> dict[int, int]:
        """The lane of each request, by the request's number."""
        spans = enumerate(self.spans)
        return {span.request.number: lane for lane, span in spans if span is not None}

    def lane(self, span: Span) -> int | None:
        """The lane that serves this request with its present text; None if there is none."""
        lane = self._places.get(span.request.number)
        if lane is None or self.lengths[lane] != len(span.request.tokens):
            return None
        there = self.spans[lane]
        return lane if there is not None and there.row == span.row else None

    def leave(self, rows: Sequence[int]) -> None:
        """Record that the texts of these rows are gone, and with them what this round adds. A
        decision that is launched later writes nothing to them, because others may have them."""
        if rows and not self.is_decided:
            self.round.leave(rows)
        for lane, span in enumerate(self.spans):
            if span is not None and span.row in rows:
                self.lengths[lane] = -1

    def places(self, spans: Sequence[Span]) -> list[int]:
        """Lanes for requests in the next round: their present ones, or free ones."""
        lanes = [self.lane(span) for span in spans]
        free = iter(sorted(set(range(len(self.spans))) - set(lanes)))
        return [next(free) if lane is None else lane for lane in lanes]

    def longest(self, spans: Sequence[Span]) -> list[int]:
        """The most tokens that the texts of requests can have after this round."""
        most = self.round.shape.draft_length + 1
        return [
            len(span.request.tokens) + (0 if self.lane(span) is None else most) for span in spans
        ]

    def move_on(self, table: Sequence[Sequence[int]]) -> None:
        """Record the results, by lane, of the round before this one."""
        for lane, row in enumerate(table):
            if self.spans[lane] is not None and lane not in self.new:
                self.lengths[lane] += max(row[0], 0) + 1


@dataclass
class Departure:
    """The rounds that were launched for a plan."""

    flight: Flight | None  # whose outcome it asks for; None: nobody is answered
    next: Flight | None = None  # behind it
    parts: Sequence[Part] = ()  # of prompts, which are on no way yet
