"""The laws (probability distributions) that the rules read in a round, made from logits on demand.

Slot 0 is the target's law after the text, slot i + 1 its law after node i of the draft. A law may
depend on the draft tokens before it (penalties, grammars), and making one costs a pass over the
vocabulary, so it is made only when a rule asks for it. Processors that keep state are called once
per position, in the text's order; each branch of a tree continues from a copy of its parent's
state. After the round their state is that of the last emitted position, as in plain decoding.
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
    """`Rows` that make the law at (row, slot) when it is asked for."""

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
    """An error raised while a law was made."""

    num_sound: int
    place: int  # position in the output
    error: BaseException

    @property
    def message(self) -> str:
        """The text of the error that the request reports."""
        reason = shown(self.error, str)
        if not isinstance(self.error, ValueError):
            reason = f"{shown(self.error)}, raised by a processor or a grammar. Correct that code."
        return f"at output position {self.place}: {reason}"


class TargetLaws(MadeRows):
    """The target's laws (R, K + 1, V), shaped by each request's own sampling options."""

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
        """The law of one slot as scores, for callers that only draw a sample from it."""
        if (row, slot) not in self._made:
            self._made[row, slot] = self._make(row, slot)
        return self._made[row, slot]

    def settle(self, row: int, path: Sequence[int]) -> tuple[list[Report], Fault | None]:
        """Move the processors of a row to the end of its accepted `path`, after the rule has
        decided.

        Returns the log-probability reports of the emitted positions, if wanted, and the first fault
        among these positions. Tokens after a fault are invalid.
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
        """The logits (V,) from which log-probabilities are reported: the model's own, or those of
        the law that was sampled."""
        if self.requests[row].logprobs_of == "model":
            return np.asarray(self.logits[row, slot])
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(self.law(row, slot), dtype=np.float64))

    def certain(self, row: int, slot: int) -> int | None:
        """The next token if it is certain, found without making the law; else None."""
        if self.requests[row].takes_largest:
            logits = self.logits[row, slot]
            token = int(logits.argmax())
            if np.isfinite(logits[token]):
                return token
        return None

    def _make(self, row: int, slot: int) -> Law:
        """Make the law of a slot from its logits and the draft tokens before it. If a processor or
        a grammar raises, keep the fault; it counts only if the round reaches the slot."""
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
        """A copy of the row's processors in the state they have before the last node of a path."""
        state: list[Any] = self.requests[row].processors
        if path:
            slot = path[-2] + 1 if len(path) > 1 else 0
            self.unweighed(row, slot)
            state = self._states[row, slot]
        return copy.deepcopy(state)


class DraftLaws(MadeRows):
    """The drafter's laws (R, K, V). A guess without a law counts as a point mass."""

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
