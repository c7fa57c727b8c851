"""The decisions of a captured round by lane, made on the device or on the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from forerun.base.errors import InputError, explain
from forerun.engine.laws import Fault
from forerun.engine.plan import Span
from forerun.engine.proposal import Proposal
from forerun.engine.request import Report, Request
from forerun.engine.stepwise import Stepwise
from forerun.gpu_rounds.edits import edits_law
from forerun.gpu_rounds.flight import NOT_LANDED, Landed
from forerun.gpu_rounds.masks import has_mask
from forerun.kernels.triton.keys import TARGET_ROW


class Answer(NamedTuple):
    """The decision for one lane."""

    path: Sequence[int]  # accepted nodes of the draft
    extra: int  # the token after them
    reports: list[Report]  # of log-probabilities, where they are wanted
    fault: Fault | None


NO_ANSWER = Answer((), 0, [], None)
"""Stands for the answer of a request that has no lane in the round."""


def answers_of(
    steps: Stepwise, spans: Sequence[Span], drafts: Sequence[Proposal], landed: Sequence[Landed]
) -> list[Answer]:
    """The decisions for all lanes; those that the host has to make are made here, from the
    logits."""
    answers = [
        NO_ANSWER if one is NOT_LANDED or one.is_by_host else _answer(span.request, draft, one)
        for span, draft, one in zip(spans, drafts, landed, strict=True)
    ]
    by_host = [index for index, one in enumerate(landed) if one.is_by_host]
    logits: Any = {
        (row, slot): scores
        for row, index in enumerate(by_host)
        for slot, scores in enumerate(landed[index].logits)
    }
    laws, paths, extra = steps.decide(
        [spans[index] for index in by_host], [drafts[index] for index in by_host], logits
    )
    for row, index in enumerate(by_host):
        answers[index] = Answer(paths[row], extra[row], *laws.settle(row, paths[row]))
    return answers


def _answer(request: Request, draft: Proposal, landed: Landed) -> Answer:
    """The decision that the device has made."""
    row = landed.row
    path = draft.path(row[3] - 1) if row[0] > 0 else ()
    fault = first_fault(request, path, landed.mask_faults) or fault_of(request, row[2])
    reports = [] if request.num_logprobs is None else landed.reports(path)
    return Answer(path, row[1], reports, fault)


def first_fault(
    request: Request, path: Sequence[int], errors: Mapping[int, BaseException]
) -> Fault | None:
    """The first of these errors (by slot) on the path that the round has taken; None if there is
    none."""
    for num_sound, slot in enumerate([0, *(node + 1 for node in path)]):
        if slot in errors:
            return Fault(num_sound, request.num_output + num_sound, errors[slot])
    return None


class CapturedLaws:
    """Takes the place of `TargetLaws` after a captured round, of which the host knows only faults
    and log-probabilities."""

    def __init__(self, answers: Sequence[Answer]) -> None:
        self._answers = answers

    def settle(self, row: int, path: Sequence[int]) -> tuple[list[Report], Fault | None]:
        return self._answers[row].reports, self._answers[row].fault


def fault_of(request: Request, code: int) -> Fault | None:
    """The fault that kept a lane from being decided; nothing of its round is kept."""
    if code == 0:
        return None
    wrong = "The logits hold NaN, +Inf or nothing finite."
    cure = "Check the model's weights and precision."
    if edits_law(request) or has_mask(request):
        wrong = "The logits hold NaN or +Inf, or a bias, bans or a grammar forbid every token."
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
    """Whether a fault was caused by the draft and not by the target."""
    return code != 0 and code % 16 != int(TARGET_ROW.value)
