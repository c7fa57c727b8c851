"""What a drafter is: something that guesses how texts go on.

It is told of a request's text once, when the request enters a row, and after every round what was
added.  Hyper-parameters are frozen fields of the drafter; what evolves is the state it returns from
`start`, so one drafter serves many engines.  A drafter speaks for a whole batch at once, because
a model that drafts should run one pass for all rows.
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
    """What is known of one drafter among several that are asked together."""

    number: int  # its place among them
    shift: float = 0.0  # of the log-odds of the chances that it states
    worth: float = 0.0  # as in a `Turn`
    goes_on: tuple[float, ...] = ()
    enough: float = inf  # it is asked if the guess at hand promises fewer tokens than this


class Prices(NamedTuple):
    """What is known of costs, for a drafter that asks others."""

    scoring: Sequence[float]  # tokens that could be made while 1, 2, ... guesses are scored
    parts: Sequence[Part]  # the drafters, the quickest first


class Asked(NamedTuple):
    """One of several drafters that were asked for a guess, and what became of the guess."""

    part: int
    seconds: float
    height: int  # of its guess
    worth: float  # tokens that its guess promised, less those of its slots


@dataclass(frozen=True)
class Turn:
    """A row whose continuation is wanted: how many guesses, and the noise addresses of this
    round."""

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
    """The largest number of guesses one after the other; None: as many as the budget."""
    shape: Tree | None = None
    """The tree to fill, which allows no other, because the proof of the rule asks for it."""
    worth: float = 0.0
    """Under shared noise, leave out guesses less likely than this to be kept."""
    goes_on: tuple[float, ...] = ()
    """By guesses in a row so far, from one on: nothing need be guessed after a last one less likely
    than this.  Where it ends, guesses go on."""
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
        """How many tokens may follow one another."""
        return self.budget if self.depth is None else min(self.depth, self.budget)


@dataclass(frozen=True)
class Guess:
    """The guessed tokens of one row, which follows which, and how they were drawn."""

    tokens: list[int] = field(default_factory=list)
    """The guesses; of a tree, every parent before its children."""
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
    """Which of several drafters made each token, (len(tokens),); the values are calibrated then."""
    asked: Sequence[Asked] = ()
    """Those of several drafters that were asked."""


@dataclass(frozen=True)
class Outcome:
    """What became of a guess, and which tokens were added to the row's text."""

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
    """`propose` and then `observe` are called once a round, with all rows that take part.

    A round that wants no guesses calls neither: the drafter may be told of several such rounds
    together, as one outcome without a guess, before it is next asked or the request is released.

    A drafter that reads the target's hidden states has an attribute `layers`, at the latest once it
    has started: each outcome then holds the states after so many layers (0: the embedding), side
    by side in that order.

    A drafter that keeps something for later engines also has `close(state)`, called once when the
    engine is done.  What is live in two engines at once, perhaps in two threads, must not be
    shared: `forerun.models.handover` hands it from one to the next.

    A drafter that learns from one request for others also has `assign(state, row, owner)`, called
    before `enter`: it must not use one owner's texts for another's (`forerun.drafters.owners`).
    """

    @property
    def name(self) -> str: ...

    def start(self, target: LanguageModel, num_rows: int, capacity: int, rows: Any = None) -> Any:
        """Called once per engine: refuse a target that does not fit, and make the state.

        rows: the target's own state, for drafters that compute on the target's rows.
        """
        ...

    def enter(self, state: Any, row: int, tokens: Sequence[int], num_prompt: int) -> None:
        """A request enters a row: its text so far, of which the first tokens are the prompt.

        Not every request is drafted for, so what takes long is better left to `propose`.
        """
        ...

    def propose(self, state: Any, turns: Sequence[Turn], *, shared_noise: bool) -> list[Guess]:
        """Guess at most `budget` tokens per turn, a chain unless the turn allows a tree.

        shared_noise: the rule is `match`, so the target's own noise should draw the guesses;
        otherwise they need noise of their own, and their probabilities if they are sampled.
        """
        ...

    def observe(self, state: Any, outcomes: Sequence[Outcome]) -> None:
        """Take in what became of each guess, and which tokens were added to each text."""
        ...

    def release(self, state: Any, row: int) -> None:
        """The row's request has ended; forget what is known of the row."""
        ...


def layers_of(drafter: Any) -> tuple[int, ...]:
    """The target's layers whose hidden states a drafter reads; none for most drafters."""
    return tuple(getattr(drafter, "layers", ()))


def assign(drafter: Drafter, state: Any, row: int, owner: str) -> None:
    """Tell a drafter whose request enters a row; drafters without a memory need not know."""
    if hasattr(drafter, "assign"):
        drafter.assign(state, row, owner)


def close(drafter: Drafter, state: Any) -> None:
    """Tell a drafter that the engine has ended; drafters without `close` need not know."""
    if hasattr(drafter, "close"):
        drafter.close(state)
