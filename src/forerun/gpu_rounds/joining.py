"""Plans of which one part is executed on the device and one on the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from forerun.base.errors import InputError, explain
from forerun.engine.laws import Fault
from forerun.engine.plan import RoundPlan, Span
from forerun.engine.proposal import NOTHING, Drafted, Proposal
from forerun.engine.request import Report, Request
from forerun.engine.stepwise import Decision
from forerun.gpu_rounds.edits import edits_law, fits_device
from forerun.gpu_rounds.lanes import cuts_law
from forerun.gpu_rounds.likeliest import number_of
from forerun.kernels.triton.keys import TARGET_ROW
from forerun.rules.types import Drawn
from forerun.trees.tree import Tree


class Needs(NamedTuple):
    """The work of a round for its requests besides sampling at a temperature."""

    cuts: bool = False  # by top-k, top-p or min-p
    edits: bool = False  # penalties, a bias or bans
    num_likely: int | None = None  # likeliest tokens at each place; None: no log-probabilities

    @classmethod
    def of(cls, requests: Sequence[Request]) -> Needs:
        return cls(
            any(cuts_law(request.sampling) for request in requests),
            any(edits_law(request) for request in requests),
            number_of([request.num_logprobs for request in requests]),
        )

    def joined(self, other: Needs) -> Needs:
        """The needs of both together."""
        numbers = [self.num_likely, other.num_likely]
        return Needs(self.cuts or other.cuts, self.edits or other.edits, number_of(numbers))


def needs_host(plan: RoundPlan) -> list[bool]:
    """Which answered spans have to be sampled on the host, (A,)."""
    return [not fits_device(span.request) for span in plan.answering]


def part_of(plan: RoundPlan, indices: Sequence[int], reading: Sequence[Span]) -> RoundPlan:
    """The part of a plan with some of its answered spans, and some of those that only read."""
    drafts = plan.drafts
    limits = [drafts.limits[index] for index in indices] if drafts.limits else ()
    spans = [plan.answering[index] for index in indices]
    return RoundPlan([*spans, *reading], replace(drafts, limits=limits, tariff=None))


def proposal_of(tree: Tree | None, tokens: Sequence[int], height: int, drawn: Drawn) -> Proposal:
    """The draft of a lane, as far as it was judged; tree: its whole shape, None for a chain."""
    if tree is None or not height:
        return Proposal(list(tokens[:height]), drawn) if height else NOTHING
    count = sum(depth < height for depth in tree.depths)
    return Proposal(list(tokens[:count]), drawn, tree=tree.first(count))


class CapturedLaws:
    """The laws of a captured round, of which the host knows faults and log-probabilities."""

    def __init__(self, faults: Sequence[Fault | None], reports: Sequence[list[Report]]) -> None:
        self._faults, self._reports = faults, reports

    def settle(self, row: int, path: Sequence[int]) -> tuple[list[Report], Fault | None]:
        return self._reports[row], self._faults[row]


def fault_of(request: Request, code: int) -> Fault | None:
    """The fault because of which a lane could not be decided; nothing of its round is kept."""
    if code == 0:
        return None
    wrong = "The logits hold NaN, +Inf or nothing finite."
    cure = "Check the model's weights and precision."
    if edits_law(request):
        wrong = (
            "The logits hold NaN or +Inf, or a bias, bad words or min_tokens forbid every token."
        )
        cure = "Loosen what forbids them, or check the model's weights and precision."
    error = InputError(explain(wrong, f"slot {code // 16} of a round", cure))
    return Fault(0, request.num_output, error)


DRAFT_FAULT = InputError(
    explain(
        "The draft's logits hold NaN, +Inf or nothing finite.",
        "a draft without a distribution",
        "Check the drafting model's weights and precision.",
    )
)


def is_of_draft(code: int) -> bool:
    """Whether a fault lies in the draft, and not in the target."""
    return code != 0 and code % 16 != int(TARGET_ROW.value)


class JoinedLaws:
    """The laws of two decisions about parts of one plan."""

    def __init__(self, places: Sequence[tuple[Any, int]]) -> None:
        self._places = places  # for each answered span: its laws, and its index there

    def settle(self, row: int, path: Sequence[int]) -> tuple[list[Report], Fault | None]:
        laws, index = self._places[row]
        settled: tuple[list[Report], Fault | None] = laws.settle(index, path)
        return settled


def waiting(count: int, times: Sequence[float]) -> Decision:
    """The decision that lets all spans wait for the next round."""
    laws: Any = CapturedLaws([None] * count, [[]] * count)
    drafted = Drafted([NOTHING] * count, None)
    return Decision(
        drafted, [()] * count, [0] * count, laws, times, waiting=frozenset(range(count))
    )


@dataclass
class Halves:
    """Two parts of a plan, each with the indices of its answered spans in the whole."""

    first: tuple[RoundPlan, Sequence[int]]
    second: tuple[RoundPlan, Sequence[int]]
    decisions: tuple[Decision, ...] = ()

    @property
    def plans(self) -> tuple[RoundPlan, RoundPlan]:
        return self.first[0], self.second[0]

    def joined(self, first: Decision, second: Decision) -> Decision:
        """The decision about the whole plan."""
        self.decisions = first, second
        places = {
            index: (decision, inner)
            for decision, (_, indices) in zip(
                self.decisions, (self.first, self.second), strict=True
            )
            for inner, index in enumerate(indices)
        }
        order = [places[index] for index in range(len(places))]
        heights = [one.drafted.height for one in self.decisions if one.drafted.height is not None]
        laws: Any = JoinedLaws([(decision.laws, inner) for decision, inner in order])
        return Decision(
            Drafted(
                [decision.drafted.proposals[inner] for decision, inner in order],
                max(heights, default=None),
                any(one.drafted.is_trial for one in self.decisions),
            ),
            [decision.paths[inner] for decision, inner in order],
            [decision.extra[inner] for decision, inner in order],
            laws,
            (first if second.waiting else second).times,
            is_overlapped=bool(second.waiting) and first.is_overlapped,
            is_timed=first.is_timed,
            load=first.load if second.waiting else None,
            room=first.room,
            costs_drafts=first.costs_drafts,
            waiting=frozenset(
                index for index, (decision, inner) in enumerate(order) if inner in decision.waiting
            ),
        )
