"""A base class for drafters whose network continues from its own guesses, one pass per level."""

from __future__ import annotations

from collections.abc import Sequence

from forerun.base.arrays import HostArray
from forerun.drafters.base import Guess, Turn
from forerun.drafters.heads.few_racers import grow
from forerun.drafters.heads.listening import Listener, Listening
from forerun.drafters.level_growth import Growth
from forerun.rules.types import Drawn
from forerun.trees.tree import ROOT


class StepByStep(Listener):
    """A drafter whose network runs one pass per level of the draft, by all methods of `Runner`."""

    tokens: HostArray  # (Vd,): the target's ids

    def propose(
        self, state: Listening, turns: Sequence[Turn], *, shared_noise: bool
    ) -> list[Guess]:
        if shared_noise and (lines := state.lines(turns, self.tokens)) is not None:
            return lines
        most = state.reach
        depths = [min(turn.height, most) if state.can_draft(turn.row) else 0 for turn in turns]
        growths = [
            Growth(turn, state.texts[turn.row], depth)
            for turn, depth in zip(turns, depths, strict=True)
        ]
        busy = [growth for growth in growths if growth.frontier]
        nodes = [(growth, ROOT) for growth in busy]
        logits = state.begin([growth.turn.row for growth in busy]) if busy else None
        while logits is not None:
            rows = range(len(nodes))
            grow(nodes, logits, rows, self.tokens, state.vocab_size, shared_noise)
            for growth in busy:
                growth.next_level()
            nodes = [(growth, node) for growth in busy for node in growth.frontier]
            logits = state.go_on(nodes) if nodes else None
        drawn = Drawn.SHARED if shared_noise else Drawn.SAMPLED
        return [growth.guess(drawn) for growth in growths]
