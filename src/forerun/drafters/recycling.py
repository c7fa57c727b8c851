"""Token recycling: drafts from the likeliest successors of each token in the target's last pass.

Every pass of the target ranks the next tokens after each token it scored, and decoding uses one of
them.  This drafter keeps a short list of the best successors per token.  A draft is a walk along
the lists: a tree that adds the most promising guess next, where a guess of rank k has the recent
hit rate of rank k.  (Luo et al., "Turning Trash into Treasure".)

Under `match` all requests of an owner share the lists.  Under a rule that needs the draft's law,
each request has its own: a draft must not depend on the rule's coins, and an earlier request with
the same seed has seen the same coins.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count, pairwise
from typing import Any

from forerun.base.errors import InputError, explain
from forerun.drafters.base import Guess, Outcome, Turn
from forerun.drafters.growing import GrowingTree
from forerun.drafters.owners import ByOwner
from forerun.models.base import LanguageModel
from forerun.trees.tree import ROOT

FIRST_GUESS = (0.4, 0.12, 0.07, 0.05)
"""Prior hit rate of each rank."""
TRUST = 20.0  # weight of the prior, in observed tokens
FADE = 0.99  # weight of an observation decays by this factor per token


@dataclass
class Lists:
    """The successors of each token, best first, and the decayed hit count of each rank."""

    successors: dict[int, Sequence[int]] = field(default_factory=dict)
    hits: list[float] = field(default_factory=list)
    tries: float = 0.0

    def chance(self, rank: int) -> float:
        """The chance that the token of this rank comes next."""
        belief = FIRST_GUESS[rank] if rank < len(FIRST_GUESS) else FIRST_GUESS[-1] / (rank + 1)
        hits = self.hits[rank] if rank < len(self.hits) else 0.0
        return (hits + TRUST * belief) / (self.tries + TRUST)

    def learn(self, pairs: Iterable[tuple[int, int]], num_ranks: int) -> None:
        """Count the rank of each follower among the known successors of its token."""
        self.hits += [0.0] * (num_ranks - len(self.hits))
        for token, follower in pairs:
            known = self.successors.get(token)
            if known is not None:
                self.tries = self.tries * FADE + 1
                self.hits = [hit * FADE for hit in self.hits]
                if follower in known:
                    self.hits[known.index(follower)] += 1


@dataclass
class SuccessorMemory:
    """Lists shared by rows of one owner, lists of each row, the last token of each row's text."""

    shared: ByOwner[Lists]
    by_row: list[Lists]
    last: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Recycling:
    """Propose the most promising walks along the target's own likeliest successors.

    num_successors: successors kept per token.
    worth: the lowest chance of acceptance at which a guess is proposed.
    """

    num_successors: int = 8
    worth: float = 0.02
    name: str = "recycling"

    def __post_init__(self) -> None:
        if self.num_successors < 1 or not 0 < self.worth < 1:
            received = f"num_successors={self.num_successors}, worth={self.worth}"
            cure = "Use num_successors from 1 and worth between 0 and 1."
            raise InputError(explain("A setting of Recycling is out of range.", received, cure))

    def start(
        self, target: LanguageModel, num_rows: int, capacity: int, rows: Any = None
    ) -> SuccessorMemory:
        return SuccessorMemory(ByOwner(Lists), [Lists() for _ in range(num_rows)])

    def assign(self, state: SuccessorMemory, row: int, owner: str) -> None:
        state.shared.assign(row, owner)

    def enter(
        self, state: SuccessorMemory, row: int, tokens: Sequence[int], num_prompt: int
    ) -> None:
        state.last[row] = tokens[-1]

    def propose(
        self, state: SuccessorMemory, turns: Sequence[Turn], *, shared_noise: bool
    ) -> list[Guess]:
        return [
            self._guess(
                (state.shared if shared_noise else state.by_row)[turn.row],
                turn,
                state.last[turn.row],
            )
            for turn in turns
        ]

    def observe(self, state: SuccessorMemory, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            text = [state.last[outcome.row], *outcome.tokens]
            state.last[outcome.row] = text[-1]
            for lists in (state.shared[outcome.row], state.by_row[outcome.row]):
                lists.learn(pairwise(text), self.num_successors)
                lists.successors.update(outcome.successors)

    def release(self, state: SuccessorMemory, row: int) -> None:
        state.by_row[row] = Lists()
        state.shared.release(row)
        state.last.pop(row, None)

    def _guess(self, lists: Lists, turn: Turn, last: int) -> Guess:
        """Best-first search: taking a node queues its next sibling and its first child."""
        tree, order = GrowingTree(), count()
        chances = [lists.chance(rank) for rank in range(self.num_successors)]
        ranks = sorted(range(self.num_successors), key=lambda rank: -chances[rank])
        heap: list[tuple[float, int, int, int, int, int]] = []

        def wait(value: float, parent: int, depth: int, before: int, turn_of: int) -> None:
            """Queue the next best successor of `before`, if its chance is at least `worth`."""
            known = lists.successors.get(before, ())
            while depth < turn.height and turn_of < len(ranks):
                chance = value * chances[ranks[turn_of]]
                if ranks[turn_of] < len(known) and chance >= self.worth:
                    heappush(heap, (-chance, next(order), parent, depth, before, turn_of))
                    return
                turn_of += 1

        wait(1.0, ROOT, 0, last, 0)
        while heap and len(tree) < turn.budget:
            chance, _, parent, depth, before, turn_of = heappop(heap)
            rank = ranks[turn_of]
            token = lists.successors[before][rank]
            node = tree.child(parent, token, -chance)
            wait(-chance, node, depth + 1, token, 0)
            if not turn.is_chain:
                wait(-chance / chances[rank], parent, depth, before, turn_of + 1)
        return tree.guess()
