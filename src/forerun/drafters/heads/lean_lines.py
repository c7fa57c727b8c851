"""Lines of guesses in the arrays that compiled code fills, as turns ask for them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from forerun.drafters.base import Turn
from forerun.lean.line import Line
from forerun.lean.plan import Ints
from forerun.noise.philox import MASK

LONGEST = 8  # guesses that a line has room for, at least


def line_for(turns: Sequence[Turn], ids: Ints) -> Line:
    """Lines for such turns; see `empty`."""
    samplings, whole = [turn.sampling for turn in turns], np.zeros((4, len(turns)), np.int64)
    size = len(turns), max(LONGEST, *(turn.height for turn in turns))
    return Line(
        ids=ids,
        rows=np.array([turn.row for turn in turns]),
        starts=whole[0],
        limits=whole[1],
        worths=np.zeros(len(turns)),
        goes_on=np.zeros(len(turns)),
        temperatures=np.array([float(sampling.temperature) for sampling in samplings]),
        top_k=np.array([sampling.top_k or len(ids) for sampling in samplings]),
        top_p=np.array([float(sampling.top_p) for sampling in samplings]),
        min_p=np.array([float(sampling.min_p) for sampling in samplings]),
        seeds=np.array([(turn.seed & MASK, turn.seed >> 32) for turn in turns], np.uint64),
        positions=whole[2],
        is_open=np.zeros(len(turns), np.bool_),
        tokens=np.zeros(size, np.int64),
        values=np.zeros(size),
        counts=whole[3],
    )


def serves(line: Line, first: Sequence[Turn], turns: Sequence[Turn]) -> bool:
    """Whether lines made for the first turns serve others: in one text they do."""
    return len(first) == len(turns) and all(
        old.row == new.row
        and old.sampling is new.sampling
        and old.seed == new.seed
        and new.height <= line.tokens.shape[1]
        for old, new in zip(first, turns, strict=True)
    )


def empty(line: Line, index: int, turn: Turn, position: int, start: int) -> None:
    """Empty a line, whose first guess goes into the slot `start`."""
    line.starts[index] = start
    line.limits[index] = turn.height
    line.worths[index] = turn.worth
    line.goes_on[index] = turn.goes_on
    line.positions[index] = position
    line.counts[index] = 0
    line.is_open[index] = turn.height > 0
