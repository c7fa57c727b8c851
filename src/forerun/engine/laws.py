"""The laws of a round as the rules read them, made from logits one row at a time.

The law at a slot depends on the draft tokens before it (penalties, grammars), and making it costs
a pass over the vocabulary, so it is made when a rule asks and not before.  Processors that keep
state are called once per position, in the text's order, and after the round their state is put
back to where the text goes on: exactly the calls of plain decoding.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from forerun.arrays import to_numpy
from forerun.drafters.base import Guess
from forerun.engine.request import Request
from forerun.types import Drawn

Row = np.ndarray[Any, Any]


class MadeRows(ABC):
    """`Rows` whose law at (row, slot) is made on demand."""

    @abstractmethod
    def law(self, row: int, slot: int) -> Row:
        """The law (V,) of one slot."""

    def at(self, tokens: Row, used: Row) -> Row:
        found = np.zeros(tokens.shape)
        for row, slot in zip(*np.nonzero(used), strict=True):
            found[row, slot] = self.law(row, slot)[tokens[row, slot]]
        return found

    def take(self, rows: Row, slots: Row) -> Row:
        return np.stack([self.law(row, slot) for row, slot in zip(rows, slots, strict=True)])


@dataclass(frozen=True)
class Fault:
    """A law that could not be made, and at which slot."""

    slot: int
    message: str


class TargetLaws(MadeRows):
    """Rows (R, K + 1, V) of the target, processed by each request's own sampling options."""

    def __init__(self, requests: Sequence[Request], tokens: Row, logits: Any) -> None:
        self.requests = requests
        self.tokens = tokens  # (R, K)
        self.logits = logits  # (R, K + 1, V), of the model's library
        self.faults: dict[int, Fault] = {}
        self._made: dict[tuple[int, int], Row] = {}
        self._states: dict[tuple[int, int], list[Any]] = {}  # processors after each slot

    def law(self, row: int, slot: int) -> Row:
        if (row, slot) not in self._made:
            if slot and self.requests[row].processors:
                self.law(row, slot - 1)
            self._made[row, slot] = self._make(row, slot)
        return self._made[row, slot]

    def settle(self, row: int, num_emitted: int) -> list[Row]:
        """The laws of the emitted positions; processors go back to the last of them."""
        request = self.requests[row]
        if num_emitted and (row, num_emitted - 1) in self._states:
            request.processors = self._states[row, num_emitted - 1]
        if request.num_logprobs is None:
            return []
        return [self.law(row, slot) for slot in range(num_emitted)]

    def _make(self, row: int, slot: int) -> Row:
        request = self.requests[row]
        logits = to_numpy(self.logits[row, slot])
        try:  # a grammar or processor of the user's may object to a draft that is never reached
            law = request.law(logits, self.tokens[row, :slot].tolist())
            if request.processors:
                self._states[row, slot] = copy.deepcopy(request.processors)
            return law / float(law.sum(dtype=np.float64))
        except Exception as error:
            earliest = self.faults.get(row)
            if earliest is None or slot < earliest.slot:
                reason = str(error) if isinstance(error, ValueError) else repr(error)
                place = request.num_output + slot
                self.faults[row] = Fault(slot, f"at output position {place}: {reason}")
            stand_in = np.zeros_like(logits)
            stand_in[0] = 1.0
            return stand_in


class DraftLaws(MadeRows):
    """Rows (R, K, V) of the drafter; a guess without a law is a point mass."""

    def __init__(self, guesses: Sequence[Guess], vocab_size: int) -> None:
        self.guesses = guesses
        self.vocab_size = vocab_size

    def law(self, row: int, slot: int) -> Row:
        guess = self.guesses[row]
        if guess.probs is not None and guess.drawn is Drawn.SAMPLED:
            return np.asarray(guess.probs[slot])
        point = np.zeros(self.vocab_size)
        point[guess.tokens[slot]] = 1.0
        return point
