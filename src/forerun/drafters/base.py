"""What a drafter is: something that, given the texts so far, guesses how they go on.

Hyper-parameters are frozen fields of the drafter; what evolves is the state it returns from
`start`, so one drafter serves many engines.  A drafter speaks for a whole batch at once, because
a model that drafts should run one pass for all rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from forerun.models.base import LanguageModel
from forerun.sampling import Sampling
from forerun.tree import Tree
from forerun.types import Drawn


class Prices(NamedTuple):
    """Seconds, as things go at present."""

    token: float  # of the text
    slot: float  # what one more guess adds to the target's pass


@dataclass(frozen=True)
class Turn:
    """A row whose continuation is wanted: its text, and the noise addresses of this round."""

    row: int
    tokens: Sequence[int]  # the text so far, prompt included
    num_prompt: int
    budget: int  # at most so many tokens, 0 included
    sampling: Sampling
    seed: int
    position: int  # index in the output of the first token to be guessed
    depth: int | None = None  # at most so many one after the other; None: as many as the budget
    shape: Tree | None = None  # fill this tree and no other: the rule's proof asks for it
    worth: float = 0.0  # under shared noise: leave out guesses less likely than this to be kept
    prices: Prices | None = None  # where they are known, for drafters that weigh their own cost

    @property
    def is_chain(self) -> bool:
        """Whether a single line of tokens is wanted."""
        return self.shape is None and (self.depth is None or self.budget <= self.depth)

    @property
    def height(self) -> int:
        """How many tokens may follow one another."""
        return self.budget if self.depth is None else min(self.depth, self.budget)


@dataclass(frozen=True)
class Guess:
    """The guessed tokens of one row, which follows which, and how they were drawn."""

    tokens: list[int] = field(default_factory=list)
    drawn: Drawn = Drawn.POINT
    probs: np.ndarray[Any, Any] | None = None  # (len(tokens), V) where drawn is SAMPLED: the
    # law that each token was drawn from, its earlier siblings given (forerun.children)
    parents: list[int] | None = None  # (len(tokens),), -1 for the text; None: one after the other
    values: list[float] | None = None  # (len(tokens),): the drafter's estimate that each is kept


@dataclass(frozen=True)
class Outcome:
    """What became of a guess: which of its nodes were accepted, and the row's text afterwards."""

    row: int
    num_accepted: int
    tokens: Sequence[int]
    path: Sequence[int] = ()  # the accepted nodes, in order, numbered as in the guess
    successors: Sequence[tuple[int, Sequence[int]]] = ()
    """Each scored token with the target's likeliest tokens after it, best first; only for a
    drafter with an attribute `num_successors` above 0, and so many of them."""
    num_scored: int | None = None  # tokens of the guess that were scored; the engine may leave out
    # those that are not worth their place.  None: all of them


class Drafter(Protocol):
    """Three verbs and a farewell; each is called with all rows that take part in a round.

    A drafter that keeps something for later engines also has `close(state)`, called once when the
    engine is done.  What is live in two engines at once, perhaps in two threads, must not be
    shared: `forerun.shelf` hands it from one to the next.
    """

    @property
    def name(self) -> str: ...

    def start(self, target: LanguageModel, num_rows: int, capacity: int, rows: Any = None) -> Any:
        """Called once per engine: refuse a target that does not fit, and make the state.

        rows: the target's own state, for drafters that read what it has computed.
        """
        ...

    def propose(self, state: Any, turns: Sequence[Turn], *, shared_noise: bool) -> list[Guess]:
        """Guess at most `budget` tokens per turn, a chain unless the turn allows a tree.

        shared_noise: the rule is `match`, so the target's own noise should draw the guesses;
        otherwise they need noise of their own, and their probabilities if they are sampled.
        """
        ...

    def observe(self, state: Any, outcomes: Sequence[Outcome]) -> None:
        """Called after every round with what became of each guess."""
        ...

    def release(self, state: Any, row: int) -> None:
        """The row's request is over; the next one in it has nothing to do with it."""
        ...


def close(drafter: Drafter, state: Any) -> None:
    """The engine is done with this state; a drafter without `close` keeps nothing of it."""
    if hasattr(drafter, "close"):
        drafter.close(state)
