"""Drafts the tokens that a grammar forces, followed by another drafter's guesses.

Under `match` the other drafter is asked as well, and its guess is used if it begins with the forced
tokens. Other rules need the probability of each guess, which choosing between two guesses would
change; under these the forced tokens are the whole guess, and certain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from forerun.base.errors import ends_process
from forerun.drafters.base import Drafter, Guess, Outcome, Turn, assign, close, layers_of
from forerun.drafters.texts import Text, Texts
from forerun.grammars.base import Cursor
from forerun.models.base import LanguageModel
from forerun.trees.tree import ROOT


@dataclass
class _State:
    inner: Any
    texts: Texts = field(default_factory=Texts)
    forced: set[int] = field(default_factory=set)  # rows whose guess was not the inner drafter's


@dataclass(frozen=True)
class Forced:
    """Guess the tokens that the grammar forces; if it forces none, ask the inner drafter.

    `generate` and `stream` wrap their drafter in it if a request has a grammar; `AsyncEngine`
    always does.
    """

    inner: Drafter | None = None

    @property
    def name(self) -> str:
        return "forced" if self.inner is None else self.inner.name

    @property
    def steered_as(self) -> Any:
        """The drafter under whose name the policy learns how far to draft."""
        return "forced" if self.inner is None else self.inner

    @property
    def layers(self) -> tuple[int, ...]:
        return layers_of(self.inner)

    def start(
        self, target: LanguageModel, num_rows: int, capacity: int, rows: Any = None
    ) -> _State:
        if self.inner is None:
            return _State(None)
        return _State(self.inner.start(target, num_rows, capacity, rows))

    def assign(self, state: _State, row: int, owner: str) -> None:
        if self.inner is not None:
            assign(self.inner, state.inner, row, owner)

    def enter(self, state: _State, row: int, tokens: Sequence[int], num_prompt: int) -> None:
        state.texts.enter(row, tokens, num_prompt)
        if self.inner is not None:
            self.inner.enter(state.inner, row, tokens, num_prompt)

    def propose(self, state: _State, turns: Sequence[Turn], *, shared_noise: bool) -> list[Guess]:
        forced = {
            turn.row: tokens
            for turn in turns
            if (tokens := forced_tokens(turn, state.texts[turn.row]))
        }
        asked = [turn for turn in turns if shared_noise or turn.row not in forced]
        guesses: dict[int, Guess] = {}
        if self.inner is not None and asked:
            proposed = self.inner.propose(state.inner, asked, shared_noise=shared_noise)
            guesses = {turn.row: guess for turn, guess in zip(asked, proposed, strict=True)}
        for row, tokens in forced.items():
            if row in guesses and begins_with(guesses[row], tokens):
                continue
            guesses[row] = Guess(tokens)
            state.forced.add(row)
        return [guesses.get(turn.row, Guess()) for turn in turns]

    def observe(self, state: _State, outcomes: Sequence[Outcome]) -> None:
        state.texts.observe(outcomes)
        if self.inner is not None:
            self.inner.observe(state.inner, [_unguessed(state, outcome) for outcome in outcomes])
        state.forced.clear()

    def release(self, state: _State, row: int) -> None:
        state.texts.release(row)
        state.forced.discard(row)
        if self.inner is not None:
            self.inner.release(state.inner, row)

    def close(self, state: _State) -> None:
        if self.inner is not None:
            close(self.inner, state.inner)


def forced_tokens(turn: Turn, text: Text) -> list[int]:
    """The tokens that the grammar forces after the text, but at most as many as the turn allows."""
    grammar = turn.sampling.grammar
    if not isinstance(grammar, Cursor) or turn.height == 0:
        return []
    try:
        return grammar.forced(text.output)[: turn.height]
    except BaseException as error:  # the request reports it when its mask is asked for
        if ends_process(error):
            raise
        return []


def begins_with(guess: Guess, tokens: Sequence[int]) -> bool:
    """Whether a path of a guess begins with these tokens."""
    parents = range(ROOT, len(guess.tokens) - 1) if guess.parents is None else guess.parents
    children = {
        (parent, token): node
        for node, (parent, token) in enumerate(zip(parents, guess.tokens, strict=False))
    }
    node: int | None = ROOT
    for token in tokens:
        node = children.get((node, token)) if node is not None else None
    return node is not None


def _unguessed(state: _State, outcome: Outcome) -> Outcome:
    """The outcome to report to the inner drafter; if its guess was replaced by forced tokens, as if
    it had guessed nothing."""
    if outcome.row not in state.forced:
        return outcome
    return replace(outcome, num_accepted=0, path=(), num_scored=0)
