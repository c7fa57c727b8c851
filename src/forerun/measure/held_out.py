"""The gain of a sweep's fastest cell on prompts that it was not chosen on.

The fastest of many cells owes part of its figure to luck on the prompts that made it the fastest.
Here the batches of prompts are split at random into halves, many times: the fastest cell on one
half is timed on the other.  So the result tells what "sweep, then use the fastest cell" gains on
new prompts of the same kind.  Leaving out one batch at a time would have no bias either, but its
spread is larger and its interval too narrow: of 40 cells as fast as plain decoding it called the
fastest one faster in 16% of 400 simulated sweeps of 24 prompts.  Repeated halves did in 6 to 7%.
That is still above the nominal 2.5%, because resampling 24 prompts gives intervals that are a
little narrow: a single cell, without any choice, was called faster in 4 to 5%.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from forerun.base.arrays import HostArray
from forerun.measure.figures import pace_by_prompt, ratio_interval, speed_by_batch
from forerun.measure.records import Cell, Interval, Run

NUM_SPLITS = 32

FEWEST_PROMPTS = 12
"""With fewer prompts the answer is always "not clear", because resampled intervals of so few
prompts are too narrow."""


class Answer(StrEnum):
    """Whether speculation pays, by a speed-up and its 95% interval."""

    YES = "it pays"
    NO = "it does not pay"
    NOT_CLEAR = "not clear"


@dataclass(frozen=True)
class Gain:
    """The speed-up of the fastest cell, chosen on other prompts than it is measured on."""

    speedup: Interval
    num_prompts: int
    num_cells: int  # how many the fastest was chosen from

    @property
    def answer(self) -> Answer:
        """Whether speculation pays, judged by this gain."""
        return answer(self.speedup, self.num_prompts)


def answer(speedup: Interval, num_prompts: int) -> Answer:
    """Yes or no if the whole interval is on one side of 1 and there are enough prompts; otherwise
    "not clear"."""
    if num_prompts < FEWEST_PROMPTS or speedup.low <= 1 <= speedup.high:
        return Answer.NOT_CLEAR
    return Answer.YES if speedup.low > 1 else Answer.NO


def held_out(cells: Mapping[Cell, Sequence[Run]], plain: Sequence[Run]) -> Gain | None:
    """The gain over plain decoding; None without plain runs or with fewer than two batches.

    In an unfinished sweep the cells with the most batches are chosen from.
    """
    speeds = {cell: speed_by_batch(runs) for cell, runs in cells.items()}
    most = max(map(len, speeds.values()), default=0)
    speeds = {cell: table for cell, table in speeds.items() if len(table) == most}
    paces = {cell: pace_by_prompt(cells[cell]) for cell in speeds}
    batches = list(dict.fromkeys(batch for table in speeds.values() for batch in table))
    plain_pace = pace_by_prompt(plain)
    chosen_paces: dict[str, list[float]] = defaultdict(list)
    draws = np.random.default_rng(0)
    for _ in range(NUM_SPLITS if len(batches) > 1 else 0):
        order = draws.permutation(len(batches))
        halves = order[: len(order) // 2], order[len(order) // 2 :]
        for known, left_out in (halves, halves[::-1]):
            fastest = _fastest(speeds, [batches[number] for number in known])
            for prompt in (prompt for number in left_out for prompt in batches[number]):
                if fastest is not None and prompt in paces[fastest]:
                    chosen_paces[prompt].append(paces[fastest][prompt])
    both = [prompt for prompt in chosen_paces if prompt in plain_pace]
    if not both:
        return None
    speedup = ratio_interval(
        np.array([plain_pace[prompt] for prompt in both]),
        np.array([np.mean(chosen_paces[prompt]) for prompt in both]),
    )
    return Gain(speedup, len(both), len(speeds))


def _fastest(
    speeds: Mapping[Cell, Mapping[tuple[str, ...], HostArray]], batches: Sequence[tuple[str, ...]]
) -> Cell | None:
    """The cell with the most tokens per second over these batches."""
    known: dict[Cell, float] = {}
    for cell, table in speeds.items():
        rows = [table[batch] for batch in batches if batch in table]
        tokens, seconds = np.sum(rows, axis=0) if rows else (0.0, 0.0)
        if seconds > 0:
            known[cell] = tokens / seconds
    return max(known, key=known.__getitem__, default=None)
