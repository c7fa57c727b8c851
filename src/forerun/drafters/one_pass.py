"""A base class for drafters whose network computes all levels of a draft in one pass.

What the network computes does not depend on the guesses, so all nodes of a level share one
distribution, unless a drafter makes one for each of them. In a tree each level takes the likeliest
tokens, or those that arrive first in the target's race.
"""

from __future__ import annotations

from collections.abc import Sequence

from forerun.base.arrays import HostArray
from forerun.drafters.base import Guess, Turn
from forerun.drafters.heads.few_racers import Node, grow
from forerun.drafters.heads.listening import Listener, Listening
from forerun.drafters.heads.runner import Logits
from forerun.drafters.level_growth import Growth
from forerun.rules.types import Drawn


class OnePass(Listener):
    """A drafter that runs its network once per round and gets the logits of all levels from it."""

    tokens: HostArray  # (Vd,): the target's ids
    num_guesses: int  # N: the most that follow one another

    def logits_of(self, state: Listening, begun: Logits, level: int) -> Logits:
        """The logits of one level, (R, Vd), from the network's output for all levels,
        (R, N, Vd)."""
        return begun[:, level]

    def children_of(
        self, state: Listening, begun: Logits, level: int, nodes: Sequence[Node], rows: list[int]
    ) -> tuple[HostArray, Logits, Sequence[int]]:
        """The tokens that may follow nodes (N,) of a level, their logits, and each node's row of
        these. The tokens are the same for all rows, (Vd,), or each row has its own, (M, K).

        rows: (N,), each node's row of `begun`.
        """
        return self.tokens, self.logits_of(state, begun, level), rows

    def propose(
        self, state: Listening, turns: Sequence[Turn], *, shared_noise: bool
    ) -> list[Guess]:
        growths = []
        for turn in turns:
            depth = min(turn.height, self.num_guesses) if state.can_draft(turn.row) else 0
            growths.append(Growth(turn, state.texts[turn.row], depth, width=turn.budget))
        busy = [growth for growth in growths if growth.frontier]
        begun = state.begin([growth.turn.row for growth in busy]) if busy else None
        while begun is not None and any(growth.frontier for growth in busy):
            nodes: list[Node] = []
            rows: list[int] = []
            for index, growth in enumerate(busy):
                nodes += [(growth, node) for node in growth.frontier]
                rows += [index] * len(growth.frontier)
            level = max(growth.level for growth in busy)
            tokens, logits, places = self.children_of(state, begun, level, nodes, rows)
            grow(nodes, logits, places, tokens, state.vocab_size, shared_noise)
            for growth in busy:
                if growth.frontier:
                    growth.next_level()
        drawn = Drawn.SHARED if shared_noise else Drawn.SAMPLED
        return [growth.guess(drawn) for growth in growths]
