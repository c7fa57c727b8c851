"""A second, smaller language model drafts, one pass per token for the whole batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import array_api_compat as compat
import numpy as np

from forerun.arrays import to_numpy
from forerun.drafters.base import Guess, Outcome, Turn
from forerun.drafters.vocabulary import check_same_vocabulary
from forerun.errors import InputError, explain
from forerun.models.base import LanguageModel, State
from forerun.models.load import wrap
from forerun.noise import Purpose, coin, draw, race, seed_key
from forerun.sampling import Bans, Sampling, weights
from forerun.types import Drawn

XP = compat.array_namespace(np.empty(0))
Row = np.ndarray[Any, Any]


@dataclass
class Drafting:
    """The drafting model's rows, and what was fed to each since its last commit."""

    rows: State
    vocab_size: int  # the target's: draft laws are cut or padded to it
    fed: dict[int, int] = field(default_factory=dict)  # pending tokens at the head of each row


class Model:
    """Draft with a model that shares the target's tokenizer.

    temperature: the drafter's own; None follows the request.  Anything is lossless; what counts
    is how often the target agrees.
    """

    def __init__(self, model: Any, *, temperature: float | None = None) -> None:
        if temperature is not None and not 0 <= temperature < np.inf:
            cure = "Use 0 for greedy, more, or None to follow the request."
            raise InputError(explain("The draft temperature is out of range.", temperature, cure))
        self.model: LanguageModel = wrap(model)
        self.temperature = temperature

    @property
    def name(self) -> str:
        return self.model.name

    def start(self, target: LanguageModel, num_rows: int, capacity: int) -> Drafting:
        check_same_vocabulary(target, self.model)
        limit = self.model.max_context
        capacity = capacity if limit is None else min(capacity, limit)
        return Drafting(self.model.start(num_rows, capacity), target.vocab_size)

    def propose(self, state: Drafting, turns: Sequence[Turn], *, shared_noise: bool) -> list[Guess]:
        guesses = [Guess([], Drawn.SHARED if shared_noise else Drawn.SAMPLED) for _ in turns]
        laws: list[list[Row]] = [[] for _ in turns]
        state.fed = {}
        room = [self._room(turn) for turn in turns]
        for slot in count():
            busy = [i for i in range(len(turns)) if slot < room[i]]
            if not busy:
                break
            logits = self._score(state, [turns[i] for i in busy], [guesses[i].tokens for i in busy])
            made = [
                self._law(turns[i], guesses[i].tokens, logits[at], state.vocab_size)
                for at, i in enumerate(busy)
            ]
            found = {i: law for i, law in zip(busy, made, strict=True) if law is not None}
            room = [room[i] if i in found else min(room[i], slot) for i in range(len(turns))]
            if not found:
                continue
            rows = np.stack(list(found.values()))
            tokens = _choose(rows, [turns[i] for i in found], slot, shared_noise)
            for (i, law), token in zip(found.items(), tokens, strict=True):
                guesses[i].tokens.append(int(token))
                if not shared_noise:
                    laws[i].append(law)
        if shared_noise:
            return guesses
        return [
            replace(guess, probs=np.stack(law)) if law else Guess()
            for guess, law in zip(guesses, laws, strict=True)
        ]

    def observe(self, state: Drafting, outcomes: Sequence[Outcome]) -> None:
        """Keep what was fed and turned out right; the last guessed token was never fed."""
        there = [outcome for outcome in outcomes if outcome.row in state.fed]
        if there:
            kept = [self._kept(state, outcome) for outcome in there]
            self.model.commit(state.rows, [outcome.row for outcome in there], kept)

    def release(self, state: Drafting, row: int) -> None:
        self.model.release(state.rows, row)

    def _room(self, turn: Turn) -> int:
        """How many tokens can be drafted: within the budget, the context, and the vocabulary."""
        if max(turn.tokens) >= self.model.vocab_size:
            return 0
        limit = self.model.max_context
        return turn.budget if limit is None else min(turn.budget, limit - len(turn.tokens) + 1)

    def _score(self, state: Drafting, turns: Sequence[Turn], drafted: Sequence[list[int]]) -> Row:
        """The drafting model's logits after each row's text and draft, (R, V)."""
        feeds = []
        for turn, tokens in zip(turns, drafted, strict=True):
            feeds.append([*turn.tokens[state.rows.lengths[turn.row] :], *tokens])
            state.fed[turn.row] = len(feeds[-1])
        rows = [turn.row for turn in turns]
        found = self.model.score(state.rows, rows, feeds, [1] * len(rows))
        return to_numpy(found)[:, 0]

    def _law(self, turn: Turn, drafted: list[int], logits: Row, vocab_size: int) -> Row | None:
        """The law to draw the next guess from, (V of the target,), normalised.

        None where the request's options leave no token, or a grammar has no answer to a text that
        only this draft has come to.
        """
        if np.isnan(logits).any():
            raise ValueError("its logits hold NaN")
        sampling: Sampling = turn.sampling
        if self.temperature is not None:
            sampling = replace(sampling, temperature=self.temperature)
        prompt, output = turn.tokens[: turn.num_prompt], turn.tokens[turn.num_prompt :]
        fitted = np.full(vocab_size, -np.inf, dtype=logits.dtype)
        size = min(vocab_size, len(logits))
        fitted[:size] = logits[:size]
        try:
            found = weights(sampling, fitted, prompt, [*output, *drafted], Bans())
        except Exception:
            return None
        return np.asarray(found / found.sum(dtype=np.float64))

    def _kept(self, state: Drafting, outcome: Outcome) -> int:
        """Fed tokens that are now part of the text."""
        stored = state.rows.lengths[outcome.row]
        return min(state.fed[outcome.row], len(outcome.tokens) - 1 - stored)


def _choose(laws: Row, turns: Sequence[Turn], slot: int, shared_noise: bool) -> Row:
    """One token per row of laws (R, V): the race the target will run, or a draw of its own."""
    key = seed_key(XP, [turn.seed for turn in turns], None)
    positions = np.array([turn.position for turn in turns])
    if shared_noise:
        return np.asarray(race(XP, laws, key, positions + slot))
    unit = coin(XP, key, positions, [slot], Purpose.DRAFT)[:, 0]
    return np.asarray(draw(XP, laws, unit))
