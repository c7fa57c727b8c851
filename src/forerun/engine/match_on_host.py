"""The rule `match` on the host, one row at a time; cheaper per round than the rule for arrays.

The rule itself (`rules/match.py`) is written for whole arrays on any device. This is the same walk
in plain Python: sample the target, follow the guess that equals the sample, and repeat. A law with
a certain outcome is not made, and noise is drawn for several positions at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from forerun.base.arrays import HostArray
from forerun.engine.laws import TargetLaws
from forerun.engine.proposal import Proposal
from forerun.noise.race import block_minima, race_row
from forerun.rules.base import CounterNoise
from forerun.sampling.options import Law

AHEAD = 16
"""The number of positions whose noise is drawn at once, because that takes hardly longer than for
one."""


@dataclass(frozen=True)
class TargetNoise(CounterNoise):
    """The noise of a round, with a cache of noise drawn ahead for later rounds."""

    drawn: dict[int, tuple[int, HostArray, HostArray]] = field(default_factory=dict)
    """For each row, the first position whose noise was drawn ahead, and for AHEAD positions from
    there on the minimum of each block and the lane that has it, both (AHEAD, num_blocks)."""
    row_race: Callable[[Law, tuple[Any, Any], int], int] | None = None
    """A faster race, if the target has one: takes a law, the words of a seed, and a position."""

    def sample(self, law: Law, row: int, depth: int) -> int:
        """Sample the target's token from a law, `depth` positions after the end of the text."""
        position, scores = int(self.positions[row]) + depth, law.scores
        if self.row_race is not None:
            return self.row_race(law, (self.key[0, 0, row], self.key[0, 1, row]), position)
        key = self.key[:, :, row : row + 1]
        first, minimum, lane = self.drawn.get(row, (-AHEAD, scores, scores))
        if not first <= position < first + AHEAD:
            first = position
            ahead = np.arange(first, first + AHEAD)
            minimum, lane = block_minima(self.xp, key, ahead, len(scores))
            self.drawn[row] = first, minimum, lane
        at = position - first
        return race_row(scores, law.weigh, key, position, minimum[at], lane[at])


def walk(
    drafts: Sequence[Proposal], laws: TargetLaws, make_noise: Callable[[], TargetNoise]
) -> tuple[list[Sequence[int]], list[int]]:
    """Decide all rows. Returns the accepted nodes of each row, and the token that follows them."""
    noise: TargetNoise | None = None
    paths: list[Sequence[int]] = []
    extra: list[int] = []
    for row, draft in enumerate(drafts):
        path: list[int] = []
        while True:
            slot = path[-1] + 1 if path else 0
            token = laws.certain(row, slot)
            if token is None:
                noise = noise or make_noise()
                token = noise.sample(laws.unweighed(row, slot), row, len(path))
            child = draft.child(slot - 1, token)
            if child is None:
                break
            path.append(child)
        paths.append(path)
        extra.append(token)
    return paths, extra
