"""The interface of drafters, which guess how texts continue.

A drafter gets a request's text once, when the request enters a row, and after every round the
tokens that were added. Its settings are frozen fields; what changes is kept in the state that
`start` returns, so one drafter serves many engines. It guesses for a whole batch at once, so that a
model that drafts can run one pass for all rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, NamedTuple, Protocol

import numpy as np

from forerun.models.base import LanguageModel
from forerun.rules.types import Drawn
from forerun.sampling.options import Sampling
from forerun.trees.tree import Tree


class Part(NamedTuple):
    """What was learned about one of several drafters that are asked together."""

    number: int  # its place among them
    shift: float = 0.0  # of the log-odds of the chances that it states
    worth: float = 0.0  # as in a `Turn`
    goes_on: tuple[float, ...] = ()
    enough: float = inf  # it is asked if the guess at hand promises fewer tokens than this


class Prices(NamedTuple):
    """The costs and chances learned so far, for a drafter that asks other drafters."""

    scoring: Sequence[float]  # tokens that could be made while 1, 2, ... guesses are scored
    parts: Sequence[Part]  # the drafters, the quickest first


class Asked(NamedTuple):
    """A report on one drafter that was asked for a guess."""

    part: int
    seconds: float
    height: int  # of its guess
    worth: float  # tokens that its guess promised, less those of its slots


@dataclass(frozen=True)
class Turn:
    """A request for a guess for one row: how long it may be, and how its noise is addressed."""

    row: int
    """The row to guess for."""
    budget: int
    """The largest number of guesses, which may be 0."""
    sampling: Sampling
    """The request's sampling options."""
    seed: int
    """The request's seed."""
    position: int
    """The index in the output of the first token to be guessed."""
    depth: int | None = None
    """The largest number of guesses that may follow one another; None: as many as `budget`."""
    shape: Tree | None = None
    """The only tree that the guess may fill, if the proof of the rule requires a fixed one; else
    None."""
    worth: float = 0.0
    """Under shared noise, guesses whose chance of being kept is below this are left out."""
    goes_on: tuple[float, ...] = ()
    """For lines of 1, 2, ... guesses, the chance of being kept that the last guess needs for
    drafting to go on after it. Longer lines always go on."""
    prices: Prices | None = None
    """Costs and chances, for a drafter that asks others; None where they are not known."""
    room: int | None = None
    """The number of tokens that the answer may still have; None: not known."""

    @property
    def is_chain(self) -> bool:
        """Whether the guess must be a chain."""
        return self.shape is None and (self.depth is None or self.budget <= self.depth)

    @property
    def height(self) -> int:
        """The most tokens that may follow one another."""
        return self.budget if self.depth is None else min(self.depth, self.budget)


@dataclass(frozen=True)
class Guess:
    """The guessed tokens of one row, the tree that they form, and how they were drawn."""

    tokens: list[int] = field(default_factory=list)
    """The guessed tokens. In a tree, a parent comes before its children."""
    drawn: Drawn = Drawn.POINT
    """How the tokens were drawn."""
    probs: np.ndarray[Any, Any] | None = None
    """The law that each token was drawn from, given its earlier siblings
    (`forerun.trees.sibling_laws`), (len(tokens), V), where drawn is SAMPLED."""
    parents: list[int] | None = None
    """The parent of each token (len(tokens),), -1 for the text; None: one after the other."""
    values: list[float] | None = None
    """The drafter's estimate of the chance of each token to be kept, (len(tokens),)."""
    parts: list[int] | None = None
    """The number of the drafter that made each token, (len(tokens),), if several drafters were
    combined; `values` are then calibrated."""
    asked: Sequence[Asked] = ()
    """Reports on the drafters that were asked, if there are several."""


@dataclass(frozen=True)
class Outcome:
    """A report to the drafter after a round: which guesses were accepted, and the tokens added to
    the row."""

    row: int
    """The row that the guess was for."""
    num_accepted: int
    """The number of guesses that were accepted."""
    tokens: Sequence[int] = ()
    """The tokens added to the text; none while a long prompt is being read."""
    path: Sequence[int] = ()
    """The accepted nodes in order, numbered as in the guess."""
    num_scored: int | None = None
    """The number of guesses that were scored, since the engine may leave out those that are not
    worth their place; None: all of them."""
    states: Any = None
    """Hidden states (N, len(layers) * hidden_size) of the text's last N tokens that the target has
    processed, those new to the row's user; only for a drafter with an attribute `layers`."""
    num_processed: int = (
        0  # tokens of the text that the target has processed, where states are given
    )


class Drafter(Protocol):
    """Guesses tokens. `propose` and then `observe` are called once a round, with all rows that take
    part.

    Neither is called in a round that wants no guesses. Such rounds are reported later, as one
    outcome without a guess, before the drafter is next asked or the request is released.

    A drafter that reads the target's hidden states has an attribute `layers`, at the latest after
    `start`. Each outcome then holds the states after these numbers of layers (0: the embedding),
    side by side in that order.

    A drafter that keeps something for later engines also has `close(state)`, called once when the
    engine ends. Two engines, perhaps in two threads, must not share a live object:
    `forerun.models.handover` passes it from one to the next.

    A drafter that learns from one request for others also has `assign(state, row, owner)`, called
    before `enter`: it must not use one owner's texts for another's (`forerun.drafters.owners`).
    """

    @property
    def name(self) -> str: ...

    def start(self, target: LanguageModel, num_rows: int, capacity: int, rows: Any = None) -> Any:
        """Make the state for one engine; raise if the target does not fit. Called once per engine.

        rows: the target's own state, for drafters that compute on the target's rows.
        """
        ...

    def enter(self, state: Any, row: int, tokens: Sequence[int], num_prompt: int) -> None:
        """Take in the text of a request that enters a row; its first num_prompt tokens are the
        prompt.

        Not every request is drafted for, so slow work is better left to `propose`.
        """
        ...

    def propose(self, state: Any, turns: Sequence[Turn], *, shared_noise: bool) -> list[Guess]:
        """Guess at most `budget` tokens per turn; a chain, unless the turn allows a tree.

        shared_noise: True under the rule `match`: guesses should then be drawn with the target's
        own noise. Otherwise they must be drawn with other noise, and sampled guesses need their
        probabilities.
        """
        ...

    def observe(self, state: Any, outcomes: Sequence[Outcome]) -> None:
        """Learn which guesses were accepted, and which tokens were added to each text."""
        ...

    def release(self, state: Any, row: int) -> None:
        """Forget the row, because its request has ended."""
        ...


def layers_of(drafter: Any) -> tuple[int, ...]:
    """The target's layers whose hidden states a drafter reads; none for most drafters."""
    return tuple(getattr(drafter, "layers", ()))


def assign(drafter: Drafter, state: Any, row: int, owner: str) -> None:
    """Tell a drafter the owner of the request that enters a row, if it has a method `assign`."""
    if hasattr(drafter, "assign"):
        drafter.assign(state, row, owner)


def close(drafter: Drafter, state: Any) -> None:
    """Tell a drafter that the engine has ended, if it has a method `close`."""
    if hasattr(drafter, "close"):
        drafter.close(state)
