"""Drafts with a model that has another tokenizer, by translating its guesses through text.

The guesses have no known probabilities, so every rule judges them by the target's law alone. A
wrong translation lowers acceptance, but never changes the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from forerun.base.arrays import to_numpy
from forerun.base.errors import InputError, explain
from forerun.drafters.base import Guess, Outcome, Turn
from forerun.drafters.texts import Texts
from forerun.models.adapter import as_model
from forerun.models.base import LanguageModel, State

UNFINISHED = "�"
LOOK_BEHIND = 4
"""The number of tokens at the end of a text that are not committed, since further text may change
how it is split into tokens."""


@dataclass
class Translation:
    """The drafting model's rows, and the text that each row stores, in the drafter's tokens."""

    rows: State
    target_tokenizer: Any
    stored: list[list[int]]
    texts: Texts = field(default_factory=Texts)  # in the target's tokens


class ThroughText:
    """Draft greedily with a model whose tokenizer differs from the target's."""

    def __init__(self, model: Any) -> None:
        self.model: LanguageModel = as_model(model)
        self.tokenizer: Any = getattr(self.model, "tokenizer", None)
        if self.tokenizer is None:
            cure = "Wrap it with its tokenizer: forerun.wrap(model, tokenizer)."
            wrong = "Drafting through text needs the drafter's tokenizer."
            raise InputError(explain(wrong, self.model.name, cure))

    @property
    def name(self) -> str:
        return f"{self.model.name} (through text)"

    def start(
        self, target: LanguageModel, num_rows: int, capacity: int, rows: Any = None
    ) -> Translation:
        tokenizer = getattr(target, "tokenizer", None)
        if tokenizer is None:
            cure = "Wrap it with its tokenizer: forerun.wrap(model, tokenizer)."
            wrong = "Drafting through text needs the target's tokenizer."
            raise InputError(explain(wrong, target.name, cure))
        limit = self.model.max_context or 4 * capacity
        rows = self.model.start(num_rows, min(limit, 4 * capacity))
        return Translation(rows, tokenizer, [[] for _ in range(num_rows)])

    def enter(self, state: Translation, row: int, tokens: Sequence[int], num_prompt: int) -> None:
        state.texts.enter(row, tokens, num_prompt)

    def propose(
        self, state: Translation, turns: Sequence[Turn], *, shared_noise: bool
    ) -> list[Guess]:
        return [Guess(self._guess(state, turn)) for turn in turns]

    def observe(self, state: Translation, outcomes: Sequence[Outcome]) -> None:
        state.texts.observe(outcomes)

    def release(self, state: Translation, row: int) -> None:
        state.texts.release(row)
        self._empty(state, row)

    def _empty(self, state: Translation, row: int) -> None:
        self.model.release(state.rows, row)
        state.stored[row] = []

    def _guess(self, state: Translation, turn: Turn) -> list[int]:
        """Encode the text for the drafter, let it draft, and encode the draft for the target."""
        row, budget, tokens = turn.row, turn.budget, state.texts[turn.row].tokens
        text = state.target_tokenizer.decode(tokens, skip_special_tokens=False)
        drafter_tokens = self.tokenizer.encode(text, add_special_tokens=False)
        limit = self.model.max_context
        is_cut = text.endswith(UNFINISHED)  # the drafter cannot start inside a character
        is_full = limit is not None and len(drafter_tokens) + budget > limit
        if budget == 0 or not drafter_tokens or is_cut or is_full:
            return []
        if state.stored[row] != drafter_tokens[: state.rows.lengths[row]]:
            self._empty(state, row)
        pending = drafter_tokens[state.rows.lengths[row] :]
        drafted: list[int] = []
        while len(drafted) < budget:
            logits = self.model.score(state.rows, [row], [pending + drafted], [1])
            drafted.append(int(np.argmax(to_numpy(logits)[0, 0])))
        kept = max(0, len(pending) - LOOK_BEHIND)
        self.model.commit(state.rows, [row], [kept])
        state.stored[row] = drafter_tokens[: state.rows.lengths[row]]
        return self._translate(state.target_tokenizer, tokens, drafter_tokens + drafted, budget)

    def _translate(
        self, tokenizer: Any, tokens: Sequence[int], drafter_tokens: list[int], budget: int
    ) -> list[int]:
        """The drafted text in the target's tokens, without an incomplete last character."""
        whole = self.tokenizer.decode(drafter_tokens, skip_special_tokens=False).rstrip(UNFINISHED)
        said = tokenizer.decode(list(tokens), skip_special_tokens=False)
        if not whole.startswith(said):
            return []
        guess = list(tokenizer.encode(whole[len(said) :], add_special_tokens=False))
        return guess[:budget]
