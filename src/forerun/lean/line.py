"""Makes the next guess of a line from a drafter's logits, in compiled code.

A greedy line takes the likeliest token.  A sampled one lets the likeliest few race with the noise
that the target will meet at that position.  Either way the chance that the guess is kept is
estimated.  A line ends before a guess that is not worth a slot, and after one so unlikely that the
next would not be.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from forerun.lean.jit import compiled, counted, inner, reordered
from forerun.lean.noise import exponential
from forerun.lean.plan import Ints
from forerun.lean.scalar import Floats, exp, largest

Doubles = NDArray[np.float64]

MOST_RACERS = 128
REACH = 9.0  # tokens less likely than the likeliest by a factor of e**9 do not race


class Line(NamedTuple):
    """One line of guesses for each of R rows, of at most L tokens."""

    ids: Ints  # (Vd,): the target's id of each token of the drafter
    rows: Ints  # (R,)
    starts: Ints  # (R,): the slot of the first guess
    limits: Ints  # (R,): the most guesses
    worths: Doubles  # (R,): the line ends before a guess that is less likely to be kept
    goes_on: Doubles  # (R, L): the line ends after a guess of this level that is less likely to be
    # kept
    temperatures: Doubles  # (R,)
    top_k: Ints  # (R,)
    top_p: Doubles  # (R,)
    min_p: Doubles  # (R,)
    seeds: NDArray[np.uint64]  # (R, 2): low and high word
    positions: Ints  # (R,): of the first guess in the output
    is_open: NDArray[np.bool_]  # (R,)
    tokens: Ints  # (R, L): the guesses
    values: Doubles  # (R, L): how likely each is to be kept
    counts: Ints  # (R,): the number of guesses


def no_line() -> Line:
    """A line without rows, for passes that only compute logits."""
    whole, real = np.empty(0, np.int64), np.empty(0)
    seeds, is_open = np.empty((0, 2), np.uint64), np.empty(0, np.bool_)
    tokens, values = np.empty((0, 0), np.int64), np.empty((0, 0))
    return Line(
        whole, whole, whole, whole, real, values, real, whole, real, real, seeds, whole, is_open,
        tokens, values, whole,
    )  # fmt: skip


@inner
def go_on(line: Line, row: int, level: int, logits: Floats) -> None:
    """Make one row's guess of a level from logits (Vd,), or close the line.

    Updates `tokens`, `values`, `counts` and `is_open` of the row.
    """
    if line.temperatures[row] == 0:
        column, chance = likeliest(logits)
    else:
        column, chance = first_to_arrive(line, row, level, logits)
    value = chance * line.values[row, level - 1] if level > 0 else chance
    if value <= 0 or value < line.worths[row]:
        line.is_open[row] = False
        return
    line.tokens[row, level] = line.ids[column]
    line.values[row, level] = value
    line.counts[row] = level + 1
    line.is_open[row] = value >= line.goes_on[row, level] and level + 1 < line.limits[row]


@compiled
def likeliest(logits: Floats) -> Any:
    """The column with the largest logit, and its probability at temperature 1."""
    top = largest(logits, logits.size)
    column = 0
    while logits[column] != top:
        column += 1
    return column, 1 / np.float64(sum_of_exp(logits, top))


@reordered
def sum_of_exp(logits: Floats, top: Any) -> Any:
    """The sum of exp(logit - top) over all logits."""
    result = np.float32(0)
    for i in range(logits.size):
        result += exp(logits[i] - top)
    return result


@counted
def first_to_arrive(line: Line, row: int, level: int, logits: Floats) -> Any:
    """The column that wins the race under the row's noise, and the chance that the target's race
    has the same winner.

    If the target's logits were the drafter's plus Gumbel noise, each token would win with a chance
    in proportion to its speed, which is its weight divided by its noise.
    """
    columns = np.empty(MOST_RACERS, np.int64)
    laws = np.empty(MOST_RACERS)
    count = racers(logits, line.temperatures[row], columns, laws)
    truncate(laws, count, line.top_k[row], line.top_p[row], line.min_p[row])
    low, high = line.seeds[row, 0], line.seeds[row, 1]
    best, fastest, total = 0, -1.0, 0.0
    for i in range(count):
        if laws[i] > 0:
            token = line.ids[columns[i]]
            speed = laws[i] / exponential(low, high, line.positions[row] + level, token)
            total += speed
            if speed > fastest:
                best, fastest = i, speed
    return columns[best], fastest / total


@compiled
def racers(logits: Floats, temperature: float, columns: Ints, laws: Doubles) -> Any:
    """Find the likeliest columns and their weights, best first; returns their number.

    columns, laws: (MOST_RACERS,), filled in.  The best weight is 1; a column less likely by a
    factor of e**REACH is left out.
    """
    top, reach = np.float64(largest(logits, logits.size)), REACH
    count = MOST_RACERS + 1
    while count > MOST_RACERS:
        least, count = np.float32(top - temperature * reach), 0
        for i in range(logits.size):
            if logits[i] >= least:
                if count < MOST_RACERS:
                    columns[count] = i
                count += 1
        reach *= 0.75
        if reach < 1e-6:  # more than MOST_RACERS equal logits: take the first
            count = min(count, MOST_RACERS)
    for i in range(1, count):
        column, at = columns[i], i
        while at > 0 and logits[columns[at - 1]] < logits[column]:
            columns[at] = columns[at - 1]
            at -= 1
        columns[at] = column
    for i in range(count):
        laws[i] = np.exp((np.float64(logits[columns[i]]) - top) / temperature)
    return count


@compiled
def truncate(laws: Doubles, count: int, top_k: int, top_p: float, min_p: float) -> None:
    """Apply top_k, top_p and min_p: set to zero the weights that they exclude.

    laws: `count` weights in falling order, the first 1.
    """
    total = 0.0
    for i in range(count):
        if i >= top_k:
            laws[i] = 0.0
        total += laws[i]
    before = 0.0
    for i in range(count):
        law = laws[i]
        if before >= top_p * total or law < min_p:
            laws[i] = 0.0
        before += law
