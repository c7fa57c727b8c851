"""Rounds over a set of slots: propose, score, verify, commit.

Requests enter free slots before a round and leave them after it, so one prompt, many prompts and
a server are the same loop.  A round without a drafter, or with a drafter that has nothing to
say, is plain decoding: the draft is simply empty.
"""

from __future__ import annotations

import operator
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any

import array_api_compat as compat
import numpy as np

from forerun.arrays import to_numpy
from forerun.drafters.base import Drafter, Guess, Outcome, Turn
from forerun.engine.laws import DraftLaws, TargetLaws
from forerun.engine.request import Request
from forerun.errors import UnsupportedError, explain
from forerun.models.base import LanguageModel
from forerun.noise import seed_key
from forerun.rules.base import Rule, Trial
from forerun.types import Drawn
from forerun.verification import CounterNoise

XP = compat.array_namespace(np.empty(0))


class Engine:
    """Slots of one target and one drafter, and the requests that wait for them."""

    def __init__(
        self,
        target: LanguageModel,
        *,
        drafter: Drafter | None,
        draft_length: int,
        rule: Rule,
        num_slots: int,
        capacity: int,
    ) -> None:
        self.target = target
        self.drafter = drafter
        self.draft_length = draft_length
        self.rule = rule
        self.waiting: deque[Request] = deque()
        self.slots: list[Request | None] = [None] * num_slots
        self._state = target.start(num_slots, capacity)
        self._drafting = drafter.start(target, num_slots, capacity) if drafter else None

    def submit(self, request: Request) -> None:
        self.waiting.append(request)

    @property
    def busy(self) -> bool:
        return bool(self.waiting) or any(self.slots)

    def cancel(self) -> None:
        """Give up everything; what was generated so far stays in the requests."""
        self.waiting.clear()
        for row, request in enumerate(self.slots):
            if request is not None:
                self._leave(row)

    def step(self) -> list[tuple[Request, int]]:
        """One round for every occupied slot: (request, number of tokens it gained)."""
        self._admit()
        rows = [row for row, request in enumerate(self.slots) if request is not None]
        active = [request for request in self.slots if request is not None]
        clock = [time.perf_counter()]
        guesses = self._propose(rows, active)
        clock.append(time.perf_counter())
        logits = self._score(rows, active, guesses)
        clock.append(time.perf_counter())
        target, emitted = self._verify(active, guesses, logits)
        clock.append(time.perf_counter())
        gained = self._commit(rows, active, guesses, target, emitted)
        clock.append(time.perf_counter())
        spent = [later - sooner for sooner, later in pairwise(clock)]
        for row, request in zip(rows, active, strict=True):
            seconds = request.stats.seconds
            for stage, amount in zip(vars(seconds), spent, strict=True):
                setattr(seconds, stage, getattr(seconds, stage) + amount)
            if request.finish_reason is not None:
                self._leave(row)
        return list(zip(active, gained, strict=True))

    def _admit(self) -> None:
        for row, request in enumerate(self.slots):
            if request is None and self.waiting:
                self.slots[row] = self.waiting.popleft()

    def _leave(self, row: int) -> None:
        if self.drafter is not None:
            with self._distrust():
                self.drafter.release(self._drafting, row)
        self.target.release(self._state, row)
        self.slots[row] = None

    def _propose(self, rows: Sequence[int], requests: Sequence[Request]) -> list[Guess]:
        """The drafter's guesses, cut to what is useful; a drafter that fails is done without."""
        if self.drafter is None or self.draft_length == 0:
            return [Guess() for _ in requests]
        turns = [
            Turn(
                row,
                request.tokens,
                len(request.prompt),
                min(self.draft_length, request.limit - request.num_output - 1),
                request.sampling,
                request.seed,
                request.num_output,
            )
            for row, request in zip(rows, requests, strict=True)
        ]
        shared = not self.rule.needs_draft_probs
        guesses = [Guess() for _ in requests]
        with self._distrust():
            found = self.drafter.propose(self._drafting, turns, shared_noise=shared)
            guesses[:] = [self._checked(*each) for each in zip(turns, found, strict=True)]
        return guesses

    def _checked(self, turn: Turn, guess: Guess) -> Guess:
        """A guess that breaks its promise would break the target far from here."""
        size = self.target.vocab_size
        tokens = [operator.index(token) for token in guess.tokens]
        outside = [token for token in tokens if not 0 <= token < size]
        if outside:
            wrong = "it proposed tokens that are not in the target's vocabulary."
            raise UnsupportedError(explain(wrong, outside, f"Ids must lie in 0 .. {size - 1}."))
        if len(tokens) > turn.budget:
            wrong = "it proposed more tokens than it was asked for."
            raise UnsupportedError(explain(wrong, len(tokens), f"At most {turn.budget}."))
        if guess.drawn is Drawn.SHARED and self.rule.needs_draft_probs:
            wrong = f"it used the target's noise under the rule {self.rule.name!r}."
            raise UnsupportedError(explain(wrong, "shared noise", "Draw with noise of its own."))
        if tokens and guess.probs is not None:
            shape, wanted = guess.probs.shape, (len(tokens), size)
            if shape != wanted:
                wrong = "its probabilities have a wrong shape."
                raise UnsupportedError(explain(wrong, shape, f"They must be {wanted}."))
            if not (guess.probs[range(len(tokens)), tokens] > 0).all():
                wrong = "it proposed tokens that its own probabilities call impossible."
                raise UnsupportedError(explain(wrong, tokens, "Pass the law they were drawn from."))
        return replace(guess, tokens=tokens)

    @contextmanager
    def _distrust(self) -> Iterator[None]:
        """A drafter that raises is done without from then on; no request ends because of it."""
        try:
            yield
        except Exception as error:
            name = self.drafter.name if self.drafter is not None else "drafter"
            note = f"{name} failed and was done without: {type(error).__name__}: {error}"
            for request in (*self.slots, *self.waiting):
                if request is not None:
                    request.stats.notes.append(note)
            self.drafter, self._drafting = None, None

    def _score(
        self, rows: Sequence[int], requests: Sequence[Request], guesses: Sequence[Guess]
    ) -> Any:
        """Target logits (R, K + 1, V) after the text and after each draft token."""
        feeds = [
            request.tokens[self._state.lengths[row] :] + guess.tokens
            for row, request, guess in zip(rows, requests, guesses, strict=True)
        ]
        wanted = [len(guess.tokens) + 1 for guess in guesses]
        return self.target.score(self._state, rows, feeds, wanted)

    def _verify(
        self, requests: Sequence[Request], guesses: Sequence[Guess], logits: Any
    ) -> tuple[TargetLaws, list[list[int]]]:
        """Let the rule decide: the laws it read, and the tokens each request emits."""
        lengths = np.array([len(guess.tokens) for guess in guesses])
        tokens = np.zeros((len(guesses), int(lengths.max())), dtype=np.int64)
        for row, guess in enumerate(guesses):
            tokens[row, : len(guess.tokens)] = guess.tokens
        target = TargetLaws(requests, tokens, logits)
        draft = DraftLaws(guesses, self.target.vocab_size)
        key = seed_key(XP, [request.seed for request in requests], None)
        positions = np.array([request.num_output for request in requests])
        noise = CounterNoise(XP, key, positions)
        trial = Trial(XP, tokens, lengths, target, draft)
        counts, extra = self.rule.decide(trial, noise)
        emitted = [
            [*guess.tokens[:count], int(token)]
            for guess, count, token in zip(guesses, to_numpy(counts), to_numpy(extra), strict=True)
        ]
        return target, emitted

    def _commit(
        self,
        rows: Sequence[int],
        requests: Sequence[Request],
        guesses: Sequence[Guess],
        target: TargetLaws,
        emitted: Sequence[list[int]],
    ) -> list[int]:
        """Append what each request keeps, tell the models, and count."""
        gained, kept = [], []
        for index, (row, request, guess) in enumerate(zip(rows, requests, guesses, strict=True)):
            num_pending = len(request.tokens) - self._state.lengths[row]
            tokens, num_accepted = emitted[index], len(emitted[index]) - 1
            fault = target.faults.get(index)
            if fault is not None and fault.slot <= num_accepted:
                tokens = tokens[: fault.slot]
            laws = target.settle(index, len(tokens))
            count = request.commit(tokens, num_accepted, len(guess.tokens), laws)
            if len(tokens) <= num_accepted and request.finish_reason is None and fault is not None:
                request.finish_reason, request.error = "error", fault.message
            request.stats.count_round(len(guess.tokens), num_accepted, count)
            gained.append(count)
            kept.append(num_pending + min(count, num_accepted))
        self.target.commit(self._state, rows, kept)
        if self.drafter is not None:
            outcomes = [
                Outcome(row, len(tokens) - 1, request.tokens)
                for row, request, tokens in zip(rows, requests, emitted, strict=True)
            ]
            with self._distrust():
                self.drafter.observe(self._drafting, outcomes)
        return gained
