"""What decides how far to draft, as an engine sees it; policies wait here for the next engine."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple, Protocol
from weakref import ref

from forerun.drafters.base import Prices
from forerun.engine.proposal import Drafted
from forerun.engine.request import Request
from forerun.engine.steering.paying_guesses import Tariff
from forerun.engine.steering.why_few import Price
from forerun.models.handover import Shelf


class Choice(NamedTuple):
    """What is asked of a drafter in a round, and what decides which guesses are scored."""

    lengths: list[int]  # (R,)
    worth: float = 0.0  # leave out guesses whose stated value is below this
    goes_on: float = 0.0  # and do not ask for another after one whose value is below this
    prices: Prices | None = None  # None: nothing is known yet
    tariff: Tariff | None = None  # None: all guesses are scored
    is_trial: bool = False  # it does not seem to pay, and is drafted to learn from it


class DraftPolicy(Protocol):
    """Decides how far to draft for the rows of an engine; an idle one serves the next engine."""

    def enter(self, row: int, request: Request) -> None:
        """A request enters a row."""
        ...

    def choose(
        self,
        rows: Sequence[int],
        requests: Sequence[Request],
        rooms: Sequence[int],
        *,
        is_timed: bool = True,
    ) -> Choice:
        """What to ask of the drafter, from rounds that are over; rooms: most tokens, (R,).

        is_timed: the round can be compared with others; not one that reads part of a prompt.
        """
        ...

    def learn(
        self,
        rows: Sequence[int],
        requests: Sequence[Request],
        drafted: Drafted,
        paths: Sequence[Sequence[int]],
        spent: Sequence[float] | None,
    ) -> None:
        """A round is over: the accepted nodes of each draft; seconds of draft, score and others,
        None where they say nothing because the pass also read part of a prompt."""
        ...

    def plain_seconds(self, num_rows: int) -> float | None:
        """What a round without drafts takes; None if not known."""
        ...

    def price(self, num_rows: int) -> Price | None:
        """What guesses cost and bring in rounds of so many requests; None if not known."""
        ...

    def leave(self, row: int) -> None:
        """The request of a row is over."""
        ...


POLICIES: Shelf[DraftPolicy] = Shelf()
"""Policies of engines that are done, by target and `policy_key`."""


def policy_key(drafter: Any, num_rows: int, is_tree: bool, coin_rule: str | None) -> Hashable:
    """What a policy was learned for.  A drafter known by its identity is referred to weakly: a
    policy must not keep a draft model alive."""
    drafter = getattr(drafter, "steered_as", drafter)
    hashing: Any = type(drafter).__hash__
    known_as = ref(drafter) if hashing is object.__hash__ else drafter
    return known_as, num_rows, is_tree, coin_rule
