"""The laws of a round as the rules read them, made from logits one row at a time.

Slot 0 is the target's law after the text, slot i + 1 its law after node i of the draft.  A law
depends on the draft tokens on its path (penalties, grammars), and making it costs a pass over the
vocabulary, so it is made when a rule asks and not before.  Processors that keep state are called
once per position, in the text's order, each branch going on from its parent's copy; after the round
their state is that of the last emitted position: exactly the calls of plain decoding.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from forerun.base.arrays import HostArray
from forerun.base.errors import ends_process, shown
from forerun.engine.proposal import Proposal
from forerun.engine.request import Report, Request, report_of
from forerun.rules.types import Drawn
from forerun.sampling.options import Law


class MadeRows(ABC):
    """`Rows` whose law at (row, slot) is made on demand."""

    @abstractmethod
    def law(self, row: int, slot: int) -> HostArray:
        """The law (V,) of one slot."""

    def at(self, tokens: HostArray, used: HostArray) -> HostArray:
        entries = np.zeros(tokens.shape)
        for row, slot in zip(*np.nonzero(used), strict=True):
            entries[row, slot] = self.law(row, slot)[tokens[row, slot]]
        return entries

    def take(self, rows: HostArray, slots: HostArray) -> HostArray:
        asked = zip(rows.tolist(), slots.tolist(), strict=True)
        return np.stack([self.law(row, slot) for row, slot in asked])


@dataclass(frozen=True)
class Fault:
    """A law that could not be made, and how many emitted tokens come before it."""

    num_sound: int
    place: int  # position in the output
    error: BaseException

    @property
    def message(self) -> str:
        """The sentence for the error of the request."""
        reason = shown(self.error, str)
        if not isinstance(self.error, ValueError):
            reason = f"{shown(self.error)}, raised by a processor or a grammar. Correct that code."
        return f"at output position {self.place}: {reason}"


class TargetLaws(MadeRows):
    """Rows (R, K + 1, V) of the target, processed by each request's own sampling options."""

    def __init__(
        self,
        requests: Sequence[Request],
        drafts: Sequence[Proposal],
        logits: HostArray,
    ) -> None:
        self.requests = requests
        self.drafts = drafts
        self.logits = logits  # (R, K + 1, V), on the host
        self._made: dict[tuple[int, int], Law] = {}
        self._normalised: dict[tuple[int, int], HostArray] = {}
        self._faults: dict[tuple[int, int], tuple[int, BaseException]] = {}  # place, reason
        self._states: dict[tuple[int, int], list[Any]] = {}  # processors after each slot

    def law(self, row: int, slot: int) -> HostArray:
        if (row, slot) not in self._normalised:
            weights = self.unweighed(row, slot).weights
            self._normalised[row, slot] = np.asarray(weights / weights.sum(dtype=np.float64))
        return self._normalised[row, slot]

    def unweighed(self, row: int, slot: int) -> Law:
        """The law of one slot, for callers that only draw a sample from it."""
        if (row, slot) not in self._made:
            self._made[row, slot] = self._make(row, slot)
        return self._made[row, slot]

    def settle(self, row: int, path: Sequence[int]) -> tuple[list[Report], Fault | None]:
        """After a round whose accepted nodes are `path`: put the processors where it ended.

        Gives reports of the emitted positions, where log-probabilities are wanted, and the
        first fault among them: what comes after it is void.
        """
        request, slots, fault = self.requests[row], [0, *(node + 1 for node in path)], None
        if self._faults:
            faulty = (at for at, slot in enumerate(slots) if (row, slot) in self._faults)
            first = next(faulty, None)
            if first is not None:
                fault = Fault(first, *self._faults[row, slots[first]])
                slots = slots[:first]
        if request.processors and slots:
            request.processors = self._states[row, slots[-1]]
        if request.num_logprobs is None:
            return [], fault
        return [report_of(self._reported(row, slot)) for slot in slots], fault

    def _reported(self, row: int, slot: int) -> HostArray:
        """The logits (V,) that log-probabilities are reported of: the model's own, or those of the
        law that a token was sampled from."""
        if self.requests[row].logprobs_of == "model":
            return np.asarray(self.logits[row, slot])
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(self.law(row, slot), dtype=np.float64))

    def certain(self, row: int, slot: int) -> int | None:
        """The token that comes next, where the law is a point mass and need not be made."""
        if self.requests[row].takes_largest:
            logits = self.logits[row, slot]
            token = int(logits.argmax())
            if np.isfinite(logits[token]):
                return token
        return None

    def _make(self, row: int, slot: int) -> Law:
        """The law at a slot, from its logits and the draft tokens before it.  Where a processor or
        a grammar raises, the fault is kept for the case that the slot is reached."""
        request, draft = self.requests[row], self.drafts[row]
        logits, path = self.logits[row, slot], draft.path(slot - 1)
        try:  # a grammar or processor of the user's may object to a draft that is never reached
            processors = self._processors_before(row, path) if request.processors else []
            law = request.law(logits, [draft.tokens[node] for node in path], processors)
            self._states[row, slot] = processors
            return law
        except BaseException as error:
            if ends_process(error):
                raise
            self._faults[row, slot] = request.num_output + len(path), error
            scores = np.full(len(logits), -np.inf)
            scores[0] = 0.0  # something to read
            return Law(scores, 0.0)

    def _processors_before(self, row: int, path: Sequence[int]) -> list[Any]:
        """A copy of the processors in their state before the last node of a path."""
        state: list[Any] = self.requests[row].processors
        if path:
            slot = path[-2] + 1 if len(path) > 1 else 0
            self.unweighed(row, slot)
            state = self._states[row, slot]
        return copy.deepcopy(state)


class DraftLaws(MadeRows):
    """Rows (R, K, V) of the drafter; a guess without a law is a point mass."""

    def __init__(self, drafts: Sequence[Proposal], vocab_size: int) -> None:
        self.drafts = drafts
        self.vocab_size = vocab_size

    def law(self, row: int, slot: int) -> HostArray:
        """The law (V,) that a guess was drawn from; a point mass where the drafter gave none."""
        draft = self.drafts[row]
        if draft.probs is not None and draft.drawn is Drawn.SAMPLED:
            return np.asarray(draft.probs[slot])
        point = np.zeros(self.vocab_size)
        point[draft.tokens[slot]] = 1.0
        return point
